;; A 64-bit hash of one page (64 KiB) of another module's memory, where it stands: faster than a loop in JavaScript, and
;; libraries that hash would have to copy the page first.
;;
;; Every 32-bit word enters two accumulators by rounds like XXH32's, which differ in their constants; there are 32 accumulators,
;; which are then mixed into one number. A page of zeros has the hash 0. Not for adversaries: who makes two pages of the same
;; hash only harms the state that is their own.
(module
  (import "env" "memory" (memory 0))

  (func $round (param $sum v128) (param $words v128) (result v128)
    (local.set $sum
      (i32x4.add (local.get $sum) (i32x4.mul (local.get $words) (v128.const i32x4 0x85EBCA77 0x85EBCA77 0x85EBCA77 0x85EBCA77))))
    (i32x4.mul
      (v128.or (i32x4.shl (local.get $sum) (i32.const 13)) (i32x4.shr_u (local.get $sum) (i32.const 19)))
      (v128.const i32x4 0x9E3779B1 0x9E3779B1 0x9E3779B1 0x9E3779B1)))

  (func $other (param $sum v128) (param $words v128) (result v128)
    (local.set $sum
      (i32x4.add (local.get $sum) (i32x4.mul (local.get $words) (v128.const i32x4 0xC2B2AE3D 0xC2B2AE3D 0xC2B2AE3D 0xC2B2AE3D))))
    (i32x4.mul
      (v128.or (i32x4.shl (local.get $sum) (i32.const 17)) (i32x4.shr_u (local.get $sum) (i32.const 15)))
      (v128.const i32x4 0x27D4EB2F 0x27D4EB2F 0x27D4EB2F 0x27D4EB2F)))

  (func $mix (param $hash i64) (param $sum v128) (result i64)
    (local.set $hash
      (i64.mul
        (i64.rotl (i64.add (local.get $hash) (i64x2.extract_lane 0 (local.get $sum))) (i64.const 31))
        (i64.const 0x9E3779B185EBCA87)))
    (i64.mul
      (i64.rotl (i64.add (local.get $hash) (i64x2.extract_lane 1 (local.get $sum))) (i64.const 31))
      (i64.const 0x9E3779B185EBCA87)))

  (func (export "hash") (param $page i32) (result i64)
    (local $at i32) (local $end i32) (local $words v128) (local $hash i64)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    (local $e v128) (local $f v128) (local $g v128) (local $h v128)
    (local.set $at (i32.shl (local.get $page) (i32.const 16)))
    (local.set $end (i32.add (local.get $at) (i32.const 65536)))
    (loop $next
      (local.set $words (v128.load offset=0 (local.get $at)))
      (local.set $a (call $round (local.get $a) (local.get $words)))
      (local.set $e (call $other (local.get $e) (local.get $words)))
      (local.set $words (v128.load offset=16 (local.get $at)))
      (local.set $b (call $round (local.get $b) (local.get $words)))
      (local.set $f (call $other (local.get $f) (local.get $words)))
      (local.set $words (v128.load offset=32 (local.get $at)))
      (local.set $c (call $round (local.get $c) (local.get $words)))
      (local.set $g (call $other (local.get $g) (local.get $words)))
      (local.set $words (v128.load offset=48 (local.get $at)))
      (local.set $d (call $round (local.get $d) (local.get $words)))
      (local.set $h (call $other (local.get $h) (local.get $words)))
      (local.set $at (i32.add (local.get $at) (i32.const 64)))
      (br_if $next (i32.ne (local.get $at) (local.get $end))))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $a)) (local.get $b)))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $c)) (local.get $d)))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $e)) (local.get $f)))
    (call $mix (call $mix (local.get $hash) (local.get $g)) (local.get $h))))
