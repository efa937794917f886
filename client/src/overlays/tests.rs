//! Chains over a pool of a few extents, whole and malformed.

use std::cell::Cell;
use std::collections::HashMap;

use proptest::prelude::*;
use tierpack_shm::overlay::encode;

use super::*;

const ROW_BYTES: u64 = 3;
const BLOCK: BlockWord = BlockWord::resident(1, 0, BlockWord::RAW, 1);

/// Extents by address, and how often one was looked at.
#[derive(Default)]
struct Pool {
    extents: HashMap<u64, Vec<u8>>,
    looks: Cell<u32>,
}

impl Pool {
    fn add(&mut self, offset: u64, covered: BlockWord, depth: u64, rows: &[(u32, [u8; 3])]) -> BlockWord {
        let rows = rows.iter().map(|(number, row)| (*number, &row[..]));
        encode(covered, depth, ROW_BYTES, rows, self.extents.entry(offset).or_default());
        BlockWord::resident(offset, 0, BlockWord::OVERLAY, 2)
    }

    fn chain<'p>(&'p self, newest: BlockWord) -> Chain<impl Fn(BlockWord, u64) -> Result<&'p [u8], NoGuard>> {
        Chain::new(newest, ROW_BYTES, |word: BlockWord, len| {
            self.looks.set(self.looks.get() + 1);
            let bytes = self.extents.get(&word.offset()).ok_or(NoGuard::Corrupt)?;
            bytes.get(..usize::try_from(len).unwrap_or(usize::MAX)).ok_or(NoGuard::Corrupt)
        })
    }

    /// What a whole copy and every single row return; both must fail alike or agree.
    fn rows(&self, newest: BlockWord, n_rows: u8) -> Result<Vec<[u8; 3]>, NoGuard> {
        let mut raw: Vec<u8> = (0..n_rows).flat_map(|row| [row; 3]).collect();
        let collected = self.chain(newest).collect()?;
        assert_eq!(collected.block.bits(), BLOCK.bits());
        collected.apply(&mut raw)?;
        let (rows, _) = raw.as_chunks();
        for (row, found) in (0..n_rows).zip(rows) {
            match self.chain(newest).find(u64::from(row))? {
                Place::Overlay(bytes) => assert_eq!(bytes, found),
                Place::Block(word) => assert_eq!((word, found), (BLOCK, &[row; 3])),
            }
        }
        Ok(rows.to_vec())
    }
}

/// A chain of `n` overlays; overlay `k`, from 1 on, holds rows 0 and `k` with value `100 + k`.
fn chain_of(pool: &mut Pool, n: u8) -> BlockWord {
    (1..=n).fold(BLOCK, |below, k| {
        let rows = [(0, [100 + k; 3]), (u32::from(k), [100 + k; 3])];
        pool.add(10 * u64::from(k), below, u64::from(k) - 1, &rows)
    })
}

#[test]
fn the_newest_overlay_that_holds_a_row_wins() {
    for n in 0..=8 {
        let mut pool = Pool::default();
        let newest = chain_of(&mut pool, n);
        let rows = pool.rows(newest, 10).unwrap();
        for (row, found) in (0..10).zip(rows) {
            let expected = match row {
                0 if n > 0 => 100 + n,
                row if row <= n && row > 0 => 100 + row,
                row => row,
            };
            assert_eq!(found, [expected; 3], "row {row} under {n} overlays");
        }
    }
}

#[test]
fn the_newest_row_costs_one_look_at_one_overlay() {
    let mut pool = Pool::default();
    let newest = chain_of(&mut pool, 8);
    assert!(matches!(pool.chain(newest).find(8), Ok(Place::Overlay(_))));
    assert_eq!(pool.looks.get(), 2, "one look at the header, one at the whole");
}

#[test]
fn a_malformed_chain_is_corrupt() {
    let corrupt = |what: &str, change: fn(&mut Pool) -> BlockWord| {
        let mut pool = Pool::default();
        let newest = change(&mut pool);
        assert!(matches!(pool.chain(newest).collect(), Err(NoGuard::Corrupt)), "{what}");
        assert!(matches!(pool.chain(newest).find(99), Err(NoGuard::Corrupt)), "{what}");
        assert!(pool.looks.get() <= 2 * 2 * 8, "{what}: {} looks", pool.looks.get());
    };
    corrupt("one that covers itself", |pool| {
        let word = BlockWord::resident(10, 0, BlockWord::OVERLAY, 2);
        pool.add(10, word, 0, &[(0, [1; 3])])
    });
    corrupt("two that cover each other", |pool| {
        let second = BlockWord::resident(20, 0, BlockWord::OVERLAY, 2);
        let first = pool.add(10, second, 1, &[(0, [1; 3])]);
        pool.add(20, first, 0, &[(0, [1; 3])])
    });
    corrupt("one that says too few are below it", |pool| {
        let first = pool.add(10, BLOCK, 0, &[]);
        let second = pool.add(20, first, 1, &[]);
        pool.add(30, second, 1, &[])
    });
    corrupt("one that says too many are below it", |pool| pool.add(10, BLOCK, 1, &[]));
    corrupt("one that says more than there can be", |pool| {
        let newest = chain_of(pool, 8);
        pool.add(90, newest, 8, &[])
    });
    corrupt("rows of another length", |pool| {
        let rows = [(0, &[1_u8, 2][..])];
        encode(BLOCK, 0, 2, rows.into_iter(), pool.extents.entry(10).or_default());
        BlockWord::resident(10, 0, BlockWord::OVERLAY, 2)
    });
    corrupt("an address without an extent", |_| BlockWord::resident(77, 0, BlockWord::OVERLAY, 2));
    corrupt("an overlay that is not resident", |pool| {
        BlockWord::from_bits(chain_of(pool, 1).bits() & !BlockWord::RESIDENT)
    });
    corrupt("a block that is not resident", |pool| {
        pool.add(10, BlockWord::from_bits(BLOCK.bits() & !BlockWord::RESIDENT), 0, &[])
    });
    corrupt("an extent that ends too early", |pool| {
        let newest = chain_of(pool, 3);
        pool.extents.get_mut(&10).unwrap().pop();
        newest
    });
    corrupt("a length beyond everything", |pool| {
        let newest = chain_of(pool, 1);
        pool.extents.get_mut(&10).unwrap()[48..56].fill(0xFF);
        newest
    });
}

#[test]
fn a_row_that_the_block_does_not_have_is_corrupt_where_it_would_be_written() {
    let mut pool = Pool::default();
    let newest = pool.add(10, BLOCK, 0, &[(10, [1; 3])]);
    assert!(matches!(pool.rows(newest, 10), Err(NoGuard::Corrupt)));
}

proptest! {
    #[test]
    fn any_bytes_end_in_rows_or_in_an_error(
        changes in proptest::collection::vec((1_u64..=4, any::<prop::sample::Index>(), any::<u8>()), 0..6),
        row in 0_u64..12,
    ) {
        let mut pool = Pool::default();
        let newest = chain_of(&mut pool, 4);
        for (k, at, byte) in changes {
            let extent = pool.extents.get_mut(&(10 * k)).expect("an overlay of the chain");
            let at = at.index(extent.len());
            extent[at] = byte;
        }
        let found = pool.chain(newest).find(row).is_ok();
        let applied = pool.chain(newest).collect().is_ok_and(|all| all.apply(&mut [0; 30]).is_ok());
        prop_assert!(pool.looks.get() <= 2 * 2 * 8, "{found} {applied}");
    }
}
