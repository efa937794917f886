//! What the codec of a put is chosen by: parts of the whole tensor that the client sends first, or of the chunk that
//! comes first.

use tierpack_kernels::fit::{Piece, Sample, pieces, seed};

use super::{ChunkData, Transfer, invalid};
use crate::store::coding::Coding;
use crate::store::{Outcome, Store};

impl Transfer {
    /// The encoding, chosen by the sample of the first who asks: others wait for it here.
    pub(super) fn coding(
        &self,
        store: &Store,
        sample: impl FnOnce() -> Outcome<Vec<(Piece, Vec<u8>)>>,
    ) -> Outcome<&Coding> {
        let choose = || {
            let sample = sample()?;
            let sample: Vec<Sample<'_>> = sample.iter().map(|(piece, raw)| (*piece, &raw[..])).collect();
            let coding = Coding::choose(self.choice, &self.geometry, &sample);
            coding.map_err(|error| self.refused(0, &error)).inspect(|coding| self.reserve(store, coding))
        };
        self.coding.get_or_init(choose).as_ref().map_err(Clone::clone)
    }

    /// A sample of the chunk that came first.
    pub(super) fn first_chunk(&self, first_block: u64, data: &ChunkData) -> Outcome<Vec<(Piece, Vec<u8>)>> {
        let (mut end, mut at) = (first_block, 0);
        while at < data.len() {
            at += self.block_in(end, data.len() - at)?.raw_bytes;
            end += 1;
        }
        let start = self.geometry.block(first_block).byte_offset;
        let pieces = pieces(&self.geometry, first_block..end, seed(&self.name, 0));
        read(data, pieces, |piece| piece.in_tensor().start as u64 - start)
    }

    /// Takes a sample of the whole tensor: its pieces, one after the other.
    pub(super) fn sample(&self, store: &Store, data: &ChunkData) -> Outcome<()> {
        let pieces = pieces(&self.geometry, 0..self.geometry.n_blocks(), seed(&self.name, 0));
        let needed: u64 = pieces.iter().map(|piece| piece.in_block().len() as u64).sum();
        if data.len() != needed {
            let text =
                format!("a sample of tensor {:?} has {needed} bytes, and {} came", self.name, data.len());
            return Err(invalid(text));
        }
        let mut end = 0;
        let at = |piece: &Piece| {
            let at = end;
            end += piece.in_block().len() as u64;
            at
        };
        self.coding(store, || read(data, pieces, at)).map(drop)
    }
}

/// Pieces of the tensor with their bytes, which lie at these places of the data.
fn read(
    data: &ChunkData,
    pieces: Vec<Piece>,
    mut at: impl FnMut(&Piece) -> u64,
) -> Outcome<Vec<(Piece, Vec<u8>)>> {
    let read = |piece: Piece| {
        let mut raw = vec![0; piece.in_block().len()];
        data.read_at(at(&piece), &mut raw)?;
        Ok((piece, raw))
    };
    pieces.into_iter().map(read).collect()
}
