use std::path::Path;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;

const MAX_BYTES: u64 = 1_000;
const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL";

/// The first bytes of a peer.
fn introduced_as(greeting: &[u8], socket_type: &str, identity: &[u8]) -> Vec<u8> {
    let mut bytes = greeting.to_vec();
    bytes.resize(GREETING_BYTES, 0);
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [("socket-type", socket_type.as_bytes()), ("Identity", identity)] {
        body.push(u8::try_from(name.len()).unwrap());
        body.extend(name.as_bytes());
        body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
        body.extend(value);
    }
    let mut frame = BytesMut::new();
    put_frame(&mut frame, COMMAND, &body);
    bytes.extend(frame);
    bytes
}

fn parts(message: &[&str]) -> Vec<Bytes> {
    message.iter().map(|part| Bytes::from((*part).to_owned())).collect()
}

// ---- what is read ----

/// The first message that a DEALER receives from a peer that sends these bytes.
async fn hears(introduction: Vec<u8>, rest: &[u8]) -> Result<Incoming, ZmtpError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let said = [&introduction, rest].concat();
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&said).await.unwrap();
        // Until the other end has heard enough.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let answer = async {
        let (_sender, mut receiver) = connect(&Endpoint::Ipc(path), MAX_BYTES).await?;
        receiver.receive().await
    };
    let answer = answer.await;
    peer.await.unwrap();
    answer
}

fn router() -> Vec<u8> {
    introduced_as(GREETING, "ROUTER", b"")
}

#[tokio::test]
async fn messages_have_parts() {
    let heard = hears(router(), b"\x04\x02\x01X\x01\x02ab\x04\x02\x01X\x00\x01c").await;
    assert_eq!(heard.unwrap(), Incoming::Message(parts(&["ab", "c"])));
    let heard = hears(router(), b"\x04\x08\x04PING\0\x01c").await;
    assert_eq!(heard.unwrap(), Incoming::Ping("c".into()));
}

#[tokio::test]
async fn a_length_is_not_believed() {
    for length in [MAX_BYTES + 1, u64::MAX] {
        let rest = [&[LONG][..], &length.to_be_bytes(), b"x"].concat();
        assert!(matches!(hears(router(), &rest).await, Err(ZmtpError::TooLarge(_))));
        let rest = [&[LONG | COMMAND][..], &length.saturating_add(24).to_be_bytes(), b"x"].concat();
        assert!(matches!(hears(router(), &rest).await, Err(ZmtpError::Malformed(_))));
    }
    // A message of many parts with commands between them. Each part alone is small enough.
    let part = [&[MORE, 250][..], &[0; 250], b"\x04\x02\x01X"].concat();
    let rest = [part.repeat(4), b"\x00\x01x".to_vec()].concat();
    assert!(matches!(hears(router(), &rest).await, Err(ZmtpError::TooLarge(_))));
    let rest = [part.repeat(4), b"\x00\x00".to_vec()].concat();
    assert!(matches!(hears(router(), &rest).await, Ok(Incoming::Message(_))));
    let rest = [b"\x01\x00".repeat(MAX_PARTS), b"\x00\x00".to_vec()].concat();
    assert!(matches!(hears(router(), &rest).await, Err(ZmtpError::TooLarge(_))));
}

#[tokio::test]
async fn peers_of_another_kind_are_named() {
    let web = introduced_as(b"HTTP/1.1 400", "", b"");
    assert!(matches!(hears(web, b"").await, Err(ZmtpError::NotZmtp)));
    let curve = introduced_as(b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0CURVE", "ROUTER", b"");
    let error = hears(curve, b"").await.unwrap_err();
    assert!(error.to_string().contains("CURVE"), "{error}");
    let subscriber = introduced_as(GREETING, "SUB", b"");
    let error = hears(subscriber, b"").await.unwrap_err();
    assert!(error.to_string().contains("DEALER"), "{error}");
}

/// All that is read from these bytes when they arrive in pieces of `size`, and the final error.
fn read(bytes: &[u8], size: usize, max_bytes: u64) -> (Vec<Incoming>, ZmtpError, Receiver) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(size);
        let socket: Socket = Box::new(ours);
        let (reads, _writes) = tokio::io::split(socket);
        let mut receiver = Receiver::new(reads, max_bytes);
        let reading = async move {
            let mut all = Vec::new();
            loop {
                match receiver.receive().await {
                    Ok(incoming) => all.push(incoming),
                    Err(error) => return (all, error, receiver),
                }
            }
        };
        let writing = async move { theirs.write_all(bytes).await };
        tokio::pin!(reading);
        tokio::select! {
            read = &mut reading => read,
            // All was written.
            _ = writing => reading.await,
        }
    })
}

#[test]
fn memory_is_taken_as_bytes_arrive() {
    // Lengths beyond all memory, and beyond the limit.
    for length in [1_u64 << 50, u64::MAX] {
        let claims = [&[LONG][..], &length.to_be_bytes(), b"x"].concat();
        let (all, error, _) = read(&claims, 100, u64::MAX);
        assert!(all.is_empty() && matches!(error, ZmtpError::Io(_)), "{error}");
    }
}

/// A short or a long body.
fn body() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), 0..330_usize).prop_map(|(byte, length)| vec![byte; length])
}

/// Random bytes similar to a frame: mostly with a length that fits and valid flags.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => 0_u8..8, 1 => any::<u8>()];
    let body = prop_oneof![
        3 => body(),
        1 => Just(b"\x04PING\0\0abc".to_vec()),
        1 => Just(b"\x09SUBSCRIBEtopic".to_vec()),
    ];
    let claimed = prop_oneof![6 => Just(None), 1 => any::<u64>().prop_map(Some), 1 => (0..2_000_u64).prop_map(Some)];
    (flags, body, claimed).prop_map(|(flags, body, claimed)| {
        let length = claimed.unwrap_or(body.len() as u64);
        let mut bytes = vec![flags];
        if flags & LONG == 0 {
            bytes.push(u8::try_from(length & 0xff).unwrap());
        } else {
            bytes.extend(length.to_be_bytes());
        }
        bytes.extend(body);
        bytes
    })
}

proptest! {
    #[test]
    fn what_is_sent_is_what_comes(
        messages in vec(vec(body(), 1..4), 0..5),
        size in 1..100_usize,
    ) {
        let messages: Vec<Vec<Bytes>> =
            messages.into_iter().map(|parts| parts.into_iter().map(Bytes::from).collect()).collect();
        let pong = encode_pong(b"x");
        let bytes: Vec<u8> = messages.iter().flat_map(|parts| [encode(parts), pong.clone()].concat()).collect();
        let (all, error, _) = read(&bytes, size, MAX_BYTES);
        prop_assert_eq!(all, messages.into_iter().map(Incoming::Message).collect::<Vec<_>>());
        prop_assert!(matches!(error, ZmtpError::Io(_)), "{}", error);
    }

    #[test]
    fn no_bytes_are_too_much(frames in vec(frame(), 0..20), size in 10..5_000_usize) {
        let (all, _, receiver) = read(&frames.concat(), size, MAX_BYTES);
        let bytes = |parts: &[Bytes]| parts.iter().map(|part| part.len() as u64).sum::<u64>();
        for incoming in &all {
            match incoming {
                Incoming::Message(parts) => {
                    prop_assert!(!parts.is_empty() && parts.len() <= MAX_PARTS && bytes(parts) <= MAX_BYTES);
                }
                Incoming::Subscribe(rest) | Incoming::Cancel(rest) | Incoming::Ping(rest) => {
                    prop_assert!(rest.len() as u64 <= MAX_COMMAND_BYTES);
                }
            }
        }
        prop_assert!(receiver.parts.len() <= MAX_PARTS && bytes(&receiver.parts) <= MAX_BYTES);
    }

    #[test]
    fn any_introduction_is_read(properties in vec(any::<u8>(), 0..100)) {
        if let Some((_, identity)) = introduction(&properties) {
            prop_assert!(identity.len() <= 255);
        }
    }
}

// ---- what is served ----

fn endpoint(folder: &TempDir) -> Endpoint {
    Endpoint::Ipc(folder.path().join("socket"))
}

fn path(endpoint: &Endpoint) -> &Path {
    match endpoint {
        Endpoint::Ipc(path) => path,
        Endpoint::Tcp(..) => panic!("a Unix socket is meant"),
    }
}

/// A peer with this identity.
async fn peer(endpoint: &Endpoint, socket_type: &str, identity: &str) -> io::Result<(Sender, Receiver)> {
    let mut stream = UnixStream::connect(path(endpoint)).await?;
    let introduction = introduced_as(GREETING, socket_type, identity.as_bytes());
    stream.write_all(&introduction).await?;
    stream.read_exact(&mut [0; GREETING_BYTES]).await?;
    let socket: Socket = Box::new(stream);
    let (reads, writes) = tokio::io::split(socket);
    let mut receiver = Receiver::new(reads, 100 << 20);
    let (flags, body) = receiver.frame().await.map_err(io::Error::other)?;
    assert!(flags == COMMAND && body.starts_with(b"\x05READY"));
    Ok((Sender(writes), receiver))
}

async fn routed(folder: &TempDir) -> (Server, Router, mpsc::Receiver<Vec<Bytes>>, Endpoint) {
    let endpoint = endpoint(folder);
    let mut server = Server::default();
    let listener = Listener::bind(&endpoint).await.unwrap();
    let is_right = |parts: Vec<Bytes>| (parts[1] != "wrong").then_some(parts);
    let (router, messages) = server.router(listener, MAX_BYTES, is_right);
    (server, router, messages, endpoint)
}

async fn message(receiver: &mut Receiver) -> Vec<Bytes> {
    match receiver.receive().await.unwrap() {
        Incoming::Message(parts) => parts,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn replies_go_to_who_has_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (server, router, mut messages, endpoint) = routed(&folder).await;
    let mut links = Vec::new();
    for name in ["a", "b"] {
        let (mut sender, receiver) = connect(&endpoint, MAX_BYTES).await.unwrap();
        // The messages before and after the wrong one arrive.
        sender.send(&parts(&["wrong"])).await.unwrap();
        sender.send(&parts(&[name, "?"])).await.unwrap();
        let asked = messages.recv().await.unwrap();
        assert_eq!(asked[1..], parts(&[name, "?"]));
        links.push((asked[0].clone(), sender, receiver));
    }
    for (identity, ..) in &links {
        assert!(router.send(&[identity.clone(), identity.clone(), "!".into()]));
    }
    for (identity, _, receiver) in &mut links {
        assert_eq!(message(receiver).await, [identity.clone(), "!".into()]);
    }
    let (identity, ..) = links.remove(0);
    while router.send(&[identity.clone(), "!".into()]) {
        sleep(Duration::from_millis(1)).await;
    }
    drop(links);
    server.close().await;
    assert!(!path(&endpoint).exists());
}

#[tokio::test]
async fn a_name_is_the_last_one_s_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, router, mut messages, endpoint) = routed(&folder).await;
    let mut links = Vec::new();
    for number in ["1", "2"] {
        let (mut sender, receiver) = peer(&endpoint, "DEALER", "me").await.unwrap();
        sender.send(&parts(&[number])).await.unwrap();
        assert_eq!(messages.recv().await.unwrap(), parts(&["me", number]));
        links.push((sender, receiver));
    }
    assert!(router.send(&parts(&["me", "to the second"])));
    let (sender, mut receiver) = links.pop().unwrap();
    assert_eq!(message(&mut receiver).await, ["to the second"]);
    drop((sender, receiver));
    while router.connections() == 2 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(router.send(&parts(&["me", "to the first"])));
    assert_eq!(message(&mut links[0].1).await, ["to the first"]);
    // Such a name is the socket's to give.
    let (_sender, mut receiver) = peer(&endpoint, "DEALER", "\0\0\0\0\0").await.unwrap();
    assert!(matches!(receiver.receive().await, Err(ZmtpError::Io(_))));
}

#[tokio::test]
async fn who_is_too_many_or_says_nothing_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, router, _messages, endpoint) = routed(&folder).await;
    let mut links = Vec::new();
    for _ in 0..32 {
        links.push(peer(&endpoint, "DEALER", "").await.unwrap());
    }
    assert!(peer(&endpoint, "DEALER", "").await.is_err());
    links.pop();
    while peer(&endpoint, "DEALER", "").await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
    while router.connections() > 31 {
        sleep(Duration::from_millis(1)).await;
    }

    let mut server = Server::with_greeting_timeout(Duration::from_millis(1));
    let silent = Endpoint::Ipc(folder.path().join("silent"));
    server.echo(Listener::bind(&silent).await.unwrap(), MAX_BYTES);
    let mut stream = UnixStream::connect(path(&silent)).await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    assert!(heard.len() <= GREETING_BYTES);
}

#[tokio::test]
async fn what_was_sent_leaves_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (server, router, mut messages, endpoint) = routed(&folder).await;
    let (mut sender, mut receiver) = peer(&endpoint, "DEALER", "me").await.unwrap();
    sender.send(&parts(&["?"])).await.unwrap();
    messages.recv().await.unwrap();
    // Nobody takes any more.
    drop(messages);
    sender.send(&parts(&["?"])).await.unwrap();
    let large = Bytes::from(vec![7; 2 << 20]);
    for _ in 0..2 {
        assert!(router.send(&["me".into(), large.clone()]));
    }
    let reading = async {
        assert!(message(&mut receiver).await == [large.clone()]);
        assert!(message(&mut receiver).await == [large.clone()]);
        assert!(matches!(receiver.receive().await, Err(ZmtpError::Io(_))));
    };
    tokio::join!(server.close(), reading);
}

async fn published(folder: &TempDir) -> (Server, Publisher, Endpoint) {
    let endpoint = endpoint(folder);
    let mut server = Server::default();
    let listener = Listener::bind(&endpoint).await.unwrap();
    let publisher = server.publisher(listener, |topic| vec!["welcome".into(), topic.clone()]);
    (server, publisher, endpoint)
}

#[tokio::test]
async fn subscribers_get_what_they_want() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, publisher, endpoint) = published(&folder).await;
    let publish = |subject: &str| publisher.send(&parts(&[subject, "!"]));
    let (mut sender, mut receiver) = peer(&endpoint, "SUB", "").await.unwrap();
    // The subscription as ZMTP 3.0 sends it.
    sender.send(&parts(&["\x01a"])).await.unwrap();
    assert_eq!(message(&mut receiver).await, parts(&["welcome", "a"]));
    ["b", "abc"].into_iter().for_each(publish);
    assert_eq!(message(&mut receiver).await, parts(&["abc", "!"]));
    // The subscription as ZMTP 3.1 sends it.
    let command = async |sender: &mut Sender, body: &[u8]| {
        let mut frame = BytesMut::new();
        put_frame(&mut frame, COMMAND, body);
        sender.write(&frame).await.unwrap();
    };
    command(&mut sender, b"\x09SUBSCRIBEb").await;
    assert_eq!(message(&mut receiver).await, parts(&["welcome", "b"]));
    publish("b");
    assert_eq!(message(&mut receiver).await, parts(&["b", "!"]));
    sender.send(&parts(&["\0a"])).await.unwrap();
    command(&mut sender, b"\x06CANCELb").await;
    command(&mut sender, b"\x09SUBSCRIBE").await;
    assert_eq!(message(&mut receiver).await, parts(&["welcome", ""]));
    command(&mut sender, b"\x06CANCEL").await;
    command(&mut sender, b"\x09SUBSCRIBEc").await;
    assert_eq!(message(&mut receiver).await, parts(&["welcome", "c"]));
    ["a", "b", "c"].into_iter().for_each(publish);
    assert_eq!(message(&mut receiver).await, parts(&["c", "!"]));
    // A sign of life.
    command(&mut sender, b"\x04PING\0\x01context").await;
    let (flags, pong) = receiver.frame().await.unwrap();
    assert_eq!((flags, pong), (COMMAND, "\x04PONGcontext".into()));
    // More subscriptions than any front end needs.
    for _ in 0..300 {
        let _ = sender.send(&parts(&["\x01x"])).await;
    }
    while receiver.receive().await.is_ok() {}
}

#[tokio::test]
async fn who_reads_slowly_holds_nobody_up_and_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, publisher, endpoint) = published(&folder).await;
    let mut links = Vec::new();
    for _ in 0..2 {
        let (mut sender, mut receiver) = peer(&endpoint, "SUB", "").await.unwrap();
        sender.send(&parts(&["\x01"])).await.unwrap();
        assert_eq!(message(&mut receiver).await, parts(&["welcome", ""]));
        links.push((sender, receiver));
    }
    let output = Bytes::from(vec![7; 1 << 20]);
    let (_sender, quick) = &mut links[1];
    for _ in 0..80 {
        publisher.send(std::slice::from_ref(&output));
        assert!(message(quick).await == [output.clone()]);
    }
    while publisher.connections() == 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let (_sender, slow) = &mut links[0];
    let mut count = 0;
    while slow.receive().await.is_ok() {
        count += 1;
    }
    assert!(count < 80, "{count}");
}

#[tokio::test]
async fn signs_of_life_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&folder);
    let mut server = Server::default();
    server.echo(Listener::bind(&endpoint).await.unwrap(), MAX_BYTES);
    let (mut sender, mut receiver) = peer(&endpoint, "REQ", "").await.unwrap();
    for sign in ["one", "", "three"] {
        sender.send(&parts(&["", sign])).await.unwrap();
        assert_eq!(message(&mut receiver).await, parts(&["", sign]));
    }
    // A peer that takes no answers is disconnected, because few of them may wait.
    let sign = Bytes::from(vec![7; 900]);
    while sender.send(std::slice::from_ref(&sign)).await.is_ok() {}
    let (mut sender, mut receiver) = peer(&endpoint, "REQ", "").await.unwrap();
    sender.send(&parts(&["", "still there"])).await.unwrap();
    assert_eq!(message(&mut receiver).await, parts(&["", "still there"]));
}
