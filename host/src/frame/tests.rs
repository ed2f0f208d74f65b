use super::*;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

const EPOCH: u32 = 7;

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from);
    let body = prop_oneof![4 => bytes(50), 1 => Just(Bytes::from(vec![9; SMALL_BODY_BYTES + 1]))];
    let frame = (bytes(100), prop::collection::vec(body, 0..5)).prop_map(|(header, bodies)| Frame { header, bodies });
    prop::collection::vec(frame, 1..6)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// The bytes that an outbox writes for these frames.
fn written(frames: &[Frame]) -> Vec<u8> {
    let mut outbox = Outbox::new(EPOCH);
    frames.iter().for_each(|frame| outbox.push(frame).unwrap());
    outbox.pieces.iter().flatten().copied().collect()
}

async fn read(mut bytes: &[u8], max_bytes: usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut reader = FrameReader::new(&mut bytes, EPOCH, max_bytes);
    let mut frames = Vec::new();
    loop {
        match reader.next().await {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(frames in frames()) {
        let (back, error) = run(read(&written(&frames), 1 << 20));
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(back, frames);
    }

    #[test]
    fn it_does_not_matter_how_it_is_cut(frames in frames(), cuts in prop::collection::vec(1..60_usize, 1..40)) {
        let bytes = written(&frames);
        let back = run(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut cuts = cuts.into_iter().cycle();
            let send = async {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(rest.len().min(cuts.next().unwrap()));
                    theirs.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                    rest = after;
                }
                drop(theirs);
            };
            let receive = async {
                let mut reader = FrameReader::new(ours, EPOCH, 1 << 20);
                let mut frames = Vec::new();
                loop {
                    // A dropped call loses nothing.
                    let next = tokio::select! {
                        biased;
                        next = reader.next() => next,
                        () = tokio::task::yield_now() => continue,
                    };
                    match next.unwrap() {
                        Some(frame) => frames.push(frame),
                        None => return frames,
                    }
                }
            };
            tokio::join!(send, receive).1
        });
        prop_assert_eq!(back, frames);
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), max_bytes in 0..300_usize) {
        let (frames, _) = run(read(&bytes, max_bytes));
        prop_assert!(frames.iter().map(Frame::len).sum::<usize>() <= bytes.len());
    }

    #[test]
    fn what_is_cut_short_is_refused(frames in frames(), cut in any::<prop::sample::Index>()) {
        let bytes = written(&frames);
        let at = cut.index(bytes.len());
        let (back, error) = run(read(&bytes[..at], 1 << 20));
        prop_assert_eq!(&back[..], &frames[..back.len()]);
        let whole = written(&back).len() == at;
        prop_assert_eq!(whole, error.is_none());
        prop_assert!(whole || matches!(error, Some(FrameError::Truncated)));
    }

    #[test]
    fn a_frame_in_one_piece_is_parsed(frames in frames()) {
        for frame in frames {
            prop_assert_eq!(Frame::parse(frame.to_bytes()).unwrap(), frame);
        }
    }
}

#[test]
fn a_length_that_lies_takes_no_memory() {
    let mut bytes = Vec::new();
    bytes.extend(900_000_000_u32.to_le_bytes());
    bytes.extend(EPOCH.to_le_bytes());
    run(async {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&bytes).await.unwrap();
        drop(theirs);
        let mut reader = FrameReader::new(ours, EPOCH, 1 << 30);
        assert!(matches!(reader.next().await, Err(FrameError::Truncated)));
        assert!(
            reader.buffer.capacity() <= 2 * READ_BYTES,
            "{}",
            reader.buffer.capacity()
        );
    });
}

#[test]
fn bounds_are_kept() {
    let frame = |length: usize| Frame {
        header: Bytes::from_static(b"[]"),
        bodies: vec![Bytes::from(vec![0; length])],
    };
    let one = |bytes: &[u8], most| run(read(bytes, most)).1;
    assert!(matches!(
        one(&written(&[frame(100)]), 100),
        Some(FrameError::TooLong(114, 100))
    ));
    assert!(one(&written(&[frame(100)]), 114).is_none());
    let many = Frame {
        header: Bytes::new(),
        bodies: vec![Bytes::new(); MAX_BODIES + 1],
    };
    assert!(matches!(one(&written(&[many]), 1 << 30), Some(FrameError::Bodies)));
    let mut other = written(&[frame(1)]);
    other[4] ^= 1;
    assert!(matches!(one(&other, 1 << 30), Some(FrameError::Epoch)));
}

#[test]
fn a_reader_that_does_not_read_holds_nobody_up() {
    run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_, writer) = ours.into_split();
        let mut outbox = Outbox::new(EPOCH);
        let large = Frame {
            header: Bytes::from_static(b"{}"),
            bodies: vec![Bytes::from(vec![5; 8 << 20])],
        };
        outbox.push(&large).unwrap();
        outbox.write(&writer).unwrap();
        assert!(!outbox.is_empty());
        let mut reader = FrameReader::new(theirs, EPOCH, 16 << 20);
        let (read, written) = tokio::join!(reader.next(), outbox.write_all(&writer));
        written.unwrap();
        assert_eq!(read.unwrap(), Some(large));
    });
}
