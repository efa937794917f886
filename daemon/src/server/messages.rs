//! What sessions say: greetings, requests, what they have unmapped, and that they go.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tierpack_shm::error::Error;
use tierpack_shm::faults::{Point, reach};
use tierpack_shm::layout::LAYOUT_VERSION;
use tierpack_shm::message::{
    ClientMessage, DaemonMessage, ErrorCode, Hello, HelloReply, PROTOCOL_VERSION, Refusal, Reply, Request,
    SegmentId, check_descriptors, decode, decode_hello, encode,
};
use tierpack_shm::page::ClientPage;
use tierpack_shm::segment::{Segment, SegmentKind};

use super::closer::is_harmless;
use super::requests::{Job, Waiting, class};
use super::session::{Attached, Passed, State};
use super::shares::Load;
use super::{SOFTWARE, Server};
use crate::error::chain;
use crate::store::Outcome;

/// Segments that a session learns of when it attaches.
type Present = Vec<(SegmentId, Arc<Segment>)>;

impl Server {
    /// Takes a message of `len` bytes; descriptors that it leaves are closed by the caller.
    pub(super) fn take_message(
        &mut self,
        number: u64,
        len: usize,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let bytes = &self.message[..len];
        let Some(session) = self.sessions.get(&number) else { return Ok(()) };
        let state = session.state;
        if let State::Greeting(_) = state {
            check_descriptors(0, descriptors.len())?;
            let hello: Hello = decode_hello(bytes)?;
            self.greet(number, hello);
            return Ok(());
        }
        let message: ClientMessage = decode(bytes)?;
        check_descriptors(message.descriptors(), descriptors.len())?;
        match message {
            ClientMessage::Request { id, deadline_ms, request } if state == State::Open => {
                let load = Load::one(len, descriptors.len());
                self.take_request(number, (id, deadline_ms), request, descriptors, load);
            }
            // An ended session is not answered.
            ClientMessage::Request { .. } => {}
            ClientMessage::Unmapped { namespace, segments } => {
                return self.unmapped(number, namespace, &segments);
            }
            ClientMessage::Detach { namespace } => self.detach(number, namespace),
            ClientMessage::Goodbye => {
                if let Some(session) = self.sessions.get_mut(&number) {
                    session.said_goodbye = true;
                }
            }
        }
        Ok(())
    }

    fn greet(&mut self, number: u64, hello: Hello) {
        let Some(session) = self.touch(number) else { return };
        let (protocol, layout) = (PROTOCOL_VERSION, LAYOUT_VERSION);
        if (hello.protocol, hello.layout) == (protocol, layout) {
            session.state = State::Open;
            let (peer, software) = (session.peer, SOFTWARE.to_owned());
            let instance = self.store.instance;
            let reply = HelloReply::Welcome { protocol, layout, instance, features: 0, software };
            self.board.session_opened(number, peer, hello.software);
            if let Some(session) = self.sessions.get_mut(&number) {
                session.send_bytes(encode(&reply).expect("a welcome is short"), Vec::new());
            }
            return;
        }
        let text = format!(
            "{SOFTWARE} speaks protocol {protocol} and layout {layout}, the client ({:.80}) protocol {} and layout {}: \
             upgrade the older one, and restart the daemon if it is that",
            hello.software, hello.protocol, hello.layout
        );
        let refusal = Refusal::new(ErrorCode::Version, text);
        let reply = HelloReply::Refused { protocol, layout, refusal };
        session.send_bytes(encode(&reply).expect("a refusal is short"), Vec::new());
        self.end_session(number, "another version");
    }

    fn take_request(
        &mut self,
        number: u64,
        (id, deadline_ms): (u64, u32),
        request: Request,
        descriptors: &mut Vec<OwnedFd>,
        load: Load,
    ) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if session.is_clogged() {
            let text = "too many replies wait to be read: read them, then try again";
            return self.reply(number, id, Err(Refusal::new(ErrorCode::Busy, text)), Vec::new());
        }
        if let Request::Attach { namespace } = request {
            return match self.attach(number, &namespace) {
                Ok((reply, passed, (namespace, segments))) => {
                    self.reply(number, id, Ok(reply), passed);
                    self.announce_to(number, namespace, segments);
                }
                Err(refusal) => self.reply(number, id, Err(refusal), Vec::new()),
            };
        }
        if let Request::Open { namespace, name } = &request
            && let Some(opened) = self.store.try_open(namespace, name, &session.caller)
        {
            // Events that were sent before this look announce the segments that the reply names.
            return self.answers.push((number, id, opened));
        }
        if !descriptors.iter().all(is_harmless) {
            let text = "descriptor for a chunk: it is no sealed memory file, or one that is too large";
            return self.reply(number, id, Err(Refusal::new(ErrorCode::Invalid, text)), Vec::new());
        }
        if let Err(refusal) = self.shares.queue(session, load) {
            return self.reply(number, id, Err(refusal), Vec::new());
        }
        let deadline = Instant::now() + Duration::from_millis(u64::from(deadline_ms));
        let descriptors = std::mem::take(descriptors);
        let (caller, class) = (Arc::clone(&session.caller), class(&request));
        let job = Job {
            session: number,
            caller,
            id,
            deadline,
            request,
            descriptors,
            load,
            waiting: Waiting::default(),
        };
        self.workers.queue.push(job, class);
    }

    /// Sends a reply, and counts it.
    pub(super) fn reply(
        &mut self,
        number: u64,
        id: u64,
        result: Result<Reply, Refusal>,
        passed: Vec<Passed>,
    ) {
        self.board.request(result.is_ok());
        if let Some(session) = self.touch(number).filter(|session| session.is_open()) {
            session.send(&DaemonMessage::Reply { id, result }, passed);
        }
    }

    /// Sends the replies that the loop has made itself.
    pub(super) fn answer(&mut self) {
        for (number, id, result) in std::mem::take(&mut self.answers) {
            self.reply(number, id, result, Vec::new());
        }
    }

    /// Refuses what no worker has begun, since the daemon ends.
    pub(super) fn refuse_queued(&mut self) {
        for job in self.workers.queue.stop() {
            let text = "the daemon is shutting down, and has not begun this request";
            self.reply(job.session, job.id, Err(Refusal::new(ErrorCode::Stopping, text)), Vec::new());
        }
    }

    /// Attaches a session to a namespace: its page and the directory's header first, then the other segments.
    fn attach(&mut self, number: u64, name: &str) -> Outcome<(Reply, Vec<Passed>, (u32, Present))> {
        let session = self.sessions.get_mut(&number).expect("the caller has found it");
        let namespace = self.store.readable(name, &session.caller)?;
        let id = namespace.id;
        if session.attached.contains_key(&id.namespace) {
            let text = format!("this session is attached to namespace {name:?} already");
            return Err(Refusal::new(ErrorCode::Invalid, text));
        }
        self.shares.attach(session)?;
        let made = ClientPage::create(id).map_err(|error| Refusal::new(ErrorCode::Internal, chain(&error)));
        let (page, fd) = made.inspect_err(|_| self.shares.detach(session.caller.uid))?;
        reach(Point::AttachPage);
        let page = Arc::new(page);
        let attached = namespace.attach(number, &session.caller, Arc::clone(&page));
        let mut segments = attached.inspect_err(|_| self.shares.detach(session.caller.uid))?;
        let header_at =
            segments.iter().position(|(id, _)| (id.kind, id.index) == (SegmentKind::Directory, 0));
        let (header, segment) = segments.swap_remove(header_at.expect("segment 0 of the directory stays"));
        self.board.session_attached(number, id.namespace, name, &page);
        self.members.entry(id.namespace).or_default().insert(number);
        let attached =
            Attached { namespace, held: BTreeSet::from([header]), retired: BTreeMap::new(), is_lost: false };
        session.attached.insert(id.namespace, attached);
        let reply = Reply::Attached { id, header_len: segment.len(), header };
        Ok((reply, vec![Passed::Owned(fd), Passed::Segment(segment)], (id.namespace, segments)))
    }

    /// A session maps nothing of a namespace any more.
    pub(super) fn detach(&mut self, number: u64, namespace: u32) {
        let Some(session) = self.touch(number) else { return };
        let uid = session.caller.uid;
        let Some(attached) = session.attached.remove(&namespace) else { return };
        self.shares.detach(uid);
        attached.namespace.detach(number);
        self.board.session_detached(number, namespace);
        self.leave_namespace(number, namespace);
        self.release_all(number, namespace, attached.retired);
        drop(attached.namespace);
        self.store.bury();
        self.ticks.expect_reclaim();
    }
}
