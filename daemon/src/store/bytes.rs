//! Bytes that are stored in a namespace's data segments, which grow when they must.

use tierpack_shm::segment::SegmentKind;
use tierpack_shm::types::Extent;

use super::content::StoredMetadata;
use super::namespace::Namespace;
use super::namespace::quota::Place;
use super::shares::User;
use super::{Outcome, Store};

impl Store {
    /// Stores bytes in a namespace's data segments, which grow when they must; nobody sees them yet.
    pub(super) fn store_bytes(
        &self,
        namespace: &Namespace,
        bytes: &[u8],
        place: Place<'_>,
        user: User,
    ) -> Outcome<Extent> {
        loop {
            if let Some(extent) = self.try_store_bytes(namespace, bytes, place)? {
                return Ok(extent);
            }
            self.grow(namespace, SegmentKind::Data, bytes.len() as u64, user)?;
        }
    }

    /// As [`Store::store_bytes`]; `None` when there is no room before a segment has come back.
    pub(super) fn try_store_bytes(
        &self,
        namespace: &Namespace,
        bytes: &[u8],
        place: Place<'_>,
    ) -> Outcome<Option<Extent>> {
        let len = bytes.len() as u64;
        loop {
            if let Some(mut fresh) =
                self.within_quota(namespace, |namespace| namespace.allocate_for(place, len))?
            {
                fresh.write(0, bytes);
                return Ok(Some(fresh.freeze()));
            }
            if !self.try_grow(namespace, SegmentKind::Data, len)? {
                self.trim(0);
                return Ok(None);
            }
        }
    }

    /// Stores metadata, which no word names yet.
    pub(super) fn store_metadata(
        &self,
        namespace: &Namespace,
        number: u32,
        bytes: &[u8],
        (place, user): (Place<'_>, User),
    ) -> Outcome<StoredMetadata> {
        let extent = self.store_bytes(namespace, bytes, place, user)?;
        let len = u32::try_from(bytes.len()).expect("an extent is at most a segment");
        Ok(StoredMetadata::new(number, len, extent))
    }
}
