;; Hashes bytes in the memory of another module, in place. This is faster than a loop in JavaScript, and a library that hashes would
;; have to copy the bytes first.
;;
;; Every 32-bit word enters one of 16 accumulators, by a round that keeps every single change. A second accumulator adds up the
;; values of the first. If two changes cancel each other in the first, the second still differs by the values in between. All 32
;; accumulators are then mixed into one number. 53 bits of it are kept, because JavaScript makes an object of any larger number.
;; Zeros have the hash 0. The hash resists no attacker, and need not: a guest that makes two pages with the same hash only harms
;; its own state.
(module
  (import "env" "memory" (memory 0))

  (func $round (param $sum v128) (param $words v128) (result v128)
    (local.set $sum
      (i32x4.mul (i32x4.add (local.get $sum) (local.get $words)) (v128.const i32x4 0x9E3779B1 0x85EBCA77 0xC2B2AE3D 0x27D4EB2F)))
    (v128.or (i32x4.shl (local.get $sum) (i32.const 13)) (i32x4.shr_u (local.get $sum) (i32.const 19))))

  (func $mix (param $hash i64) (param $sum v128) (result i64)
    (local.set $hash
      (i64.mul
        (i64.rotl (i64.add (local.get $hash) (i64x2.extract_lane 0 (local.get $sum))) (i64.const 31))
        (i64.const 0x9E3779B185EBCA87)))
    (i64.mul
      (i64.rotl (i64.add (local.get $hash) (i64x2.extract_lane 1 (local.get $sum))) (i64.const 31))
      (i64.const 0x9E3779B185EBCA87)))

  ;; $bytes is a multiple of 64, and above 0.
  (func (export "hash") (param $at i32) (param $bytes i32) (result f64)
    (local $end i32) (local $hash i64)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    (local $e v128) (local $f v128) (local $g v128) (local $h v128)
    (local.set $end (i32.add (local.get $at) (local.get $bytes)))
    (loop $next
      (local.set $a (call $round (local.get $a) (v128.load offset=0 (local.get $at))))
      (local.set $b (call $round (local.get $b) (v128.load offset=16 (local.get $at))))
      (local.set $c (call $round (local.get $c) (v128.load offset=32 (local.get $at))))
      (local.set $d (call $round (local.get $d) (v128.load offset=48 (local.get $at))))
      (local.set $e (i32x4.add (local.get $e) (local.get $a)))
      (local.set $f (i32x4.add (local.get $f) (local.get $b)))
      (local.set $g (i32x4.add (local.get $g) (local.get $c)))
      (local.set $h (i32x4.add (local.get $h) (local.get $d)))
      (local.set $at (i32.add (local.get $at) (i32.const 64)))
      (br_if $next (i32.ne (local.get $at) (local.get $end))))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $a)) (local.get $b)))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $c)) (local.get $d)))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $e)) (local.get $f)))
    (local.set $hash (call $mix (call $mix (local.get $hash) (local.get $g)) (local.get $h)))
    (f64.convert_i64_u (i64.shr_u (local.get $hash) (i64.const 11)))))
