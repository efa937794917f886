//! Every verb at a daemon that is busy.

use std::collections::HashMap;

use tierpack_shm::attachment::SlotRef;
use tierpack_shm::directory::Directory;
use tierpack_shm::message::{Drift, NamespaceChange, RefitMode, Refusal, Reply, Request};
use tierpack_shm::segment::Segment;
use tierpack_shm::types::{CodecId, Dtype};

use super::*;
use crate::client::Client;
use crate::fake_daemon::{ID, Peer, serve};
use crate::fake_tensor::entry;
use crate::namespaces::Tensors;

/// Refuses every kind of request twice, and answers it from then on; says how often each was asked.
fn busy_daemon(peer: &Peer) -> HashMap<String, u32> {
    peer.welcome();
    let mut directory = Directory::new(Segment::create(1 << 20).unwrap(), ID);
    let slot = directory.take_slot().unwrap();
    let slot = SlotRef { address: slot.address(), idx: slot.idx(), publication: 1 };
    let tensor = entry(Dtype::U8, &[4, 2], CodecId::Raw, 8);
    let mut asked = HashMap::new();
    while let Some((id, request)) = peer.asked_or_closed() {
        let kind = format!("{request:?}").split([' ', '(']).next().unwrap().to_owned();
        let times = asked.entry(kind).or_insert(0);
        *times += 1;
        if *times <= 2 {
            peer.reply(id, Err(Refusal::new(ErrorCode::Busy, "try again")));
            continue;
        }
        let (entry, namespace) = (tensor.clone(), ID.namespace);
        let reply = match request {
            Request::Attach { .. } => {
                peer.attached(id, &directory, ID);
                continue;
            }
            Request::Open { .. } => Reply::Opened { namespace, entry, row_elems: None, slot },
            Request::OpenMany { .. } => {
                Reply::OpenedMany { namespace, names: 0, tensors: Vec::new(), more: false }
            }
            Request::FileMetadata { .. } => Reply::FileMetadata(None),
            Request::PutBegin(_) => Reply::Transfer { transfer: 5 },
            Request::PutCommit { .. } => Reply::Committed(entry),
            Request::Verify { .. } => {
                Reply::Verified { n_blocks: 1, next_block: 1, raw_bytes: 8, damage: None }
            }
            Request::List { .. } => Reply::Listed { entries: Vec::new(), more: false },
            Request::NamespaceList { .. } => Reply::Namespaces { entries: Vec::new(), more: false },
            Request::Update(_) => Reply::Updated { revision: 1 },
            Request::Refit { .. } => Reply::Drift(Drift::default()),
            _ => Reply::Done,
        };
        peer.reply(id, Ok(reply));
    }
    asked
}

#[test]
fn every_verb_asks_a_busy_daemon_again() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (_dir, path, daemon) = serve(move |peer| sender.send(busy_daemon(&peer)).unwrap());
    let client = Client::builder().socket(&path).connect().unwrap();
    let handle = client.open("t").unwrap();
    assert_eq!(handle.update(&[1_u64], &[1, 2]).unwrap(), 1);
    client.fold("t", &Deadline::after(Duration::from_secs(30))).unwrap();
    assert_eq!(client.file_metadata("t").unwrap().len(), 0);
    client.put("t", Dtype::U8, &[4, 2], &[0; 8]).unwrap();
    assert_eq!(client.verify("t", |_, _| ()).unwrap(), 8);
    assert_eq!(client.list().unwrap(), []);
    assert_eq!(client.snapshot_all().unwrap().tensors().len(), 0);
    client.remove("t").unwrap();
    client.drift("t").unwrap();
    client.refit("t", RefitMode::Force, |_, _| ()).unwrap();
    client.create_namespace(&NamespaceChange::default()).unwrap();
    client.change_namespace(&NamespaceChange::default()).unwrap();
    client.remove_namespace(Tensors::Remove).unwrap();
    assert_eq!(client.namespaces().unwrap(), []);
    drop((handle, client));
    daemon.join().unwrap();
    let asked: HashMap<String, u32> = receiver.recv().unwrap();
    let kinds = "Attach Open OpenMany Update Fold FileMetadata PutBegin PutChunk PutCommit Verify List Remove Refit \
        NamespaceCreate NamespaceChange NamespaceRemove NamespaceList";
    for kind in kinds.split_whitespace() {
        let times = if kind == "Refit" { 4 } else { 3 };
        assert_eq!(asked.get(kind), Some(&times), "{kind}: {asked:?}");
    }
}

#[test]
fn who_waits_in_vain_learns_what_for() {
    let (_dir, path, daemon) = serve(|peer| {
        peer.welcome();
        while let Some((id, _)) = peer.asked_or_closed() {
            peer.reply(id, Err(Refusal::new(ErrorCode::Busy, "others are first")));
        }
    });
    let client = Client::builder().socket(&path).deadline(Duration::from_millis(50)).connect().unwrap();
    let error = client.open("t").unwrap_err();
    assert!(matches!(&error, Error::Busy { text, .. } if text == "others are first"), "{error:?}");
    drop(client);
    daemon.join().unwrap();
}

#[test]
fn pauses_differ_and_stay_within_their_bounds() {
    let pause = Duration::from_millis(64);
    let pauses: Vec<Duration> = (0..64).map(|_| jittered(pause)).collect();
    assert!(pauses.iter().all(|jittered| (pause / 2..pause).contains(jittered)));
    assert!(pauses.iter().any(|jittered| *jittered != pauses[0]));
}
