use std::os::fd::AsFd;

use parking_lot::Mutex;

use super::*;
use crate::directory::Directory;
use crate::layout::MIN_SEGMENT_BYTES;
use crate::segment::Segment;

/// Notes each call, and whether the segment was still mapped.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<(AttachmentId, SegmentKind, usize)>>);

impl SegmentObserver for Notes {
    fn before_unmap(&self, attachment: AttachmentId, kind: SegmentKind, segment_idx: usize) {
        self.0.lock().push((attachment, kind, segment_idx));
    }
}

fn fd_of(segment: &Segment) -> OwnedFd {
    segment.as_fd().try_clone_to_owned().unwrap()
}

fn attach(directory: &Directory, id: NamespaceId) -> Attachment {
    let (_page, fd) = ClientPage::create(id).unwrap();
    let header = (fd_of(directory.header_segment()), MIN_SEGMENT_BYTES);
    Attachment::new(id, fd.as_fd(), header, ForkCookie::current().unwrap(), Arc::default()).unwrap()
}

#[test]
fn observers_hear_of_every_segment_before_it_is_unmapped() {
    let id = NamespaceId { instance: 1, namespace: 2 };
    let directory = Directory::new(Segment::create(MIN_SEGMENT_BYTES).unwrap(), id);
    let (first, second) = (attach(&directory, id), attach(&directory, id));
    let data = Segment::create(MIN_SEGMENT_BYTES).unwrap();
    for segment_idx in [0, 7] {
        first.map(SegmentKind::Data, segment_idx, fd_of(&data), MIN_SEGMENT_BYTES).unwrap();
        let (_, len) = first.segment_range(SegmentKind::Data, segment_idx).unwrap();
        assert_eq!(len as u64, MIN_SEGMENT_BYTES);
    }
    let (notes, gone) = (Arc::new(Notes::default()), Arc::new(Notes::default()));
    for observer in [&notes, &notes, &gone] {
        let observer: Arc<dyn SegmentObserver> = Arc::clone(observer) as _;
        first.observe(&observer);
    }
    drop(gone);
    let number = first.number();
    assert_ne!(number, second.number());
    assert!(first.unmap(SegmentKind::Data, 7));
    assert_eq!(first.segment_range(SegmentKind::Data, 7), None);
    assert_eq!(*notes.0.lock(), [(number, SegmentKind::Data, 7)], "once, and not the other attachment's");
    drop((first, second));
    let left = [(number, SegmentKind::Data, 0), (number, SegmentKind::Directory, 0)];
    assert_eq!(notes.0.lock()[1..], left);
}
