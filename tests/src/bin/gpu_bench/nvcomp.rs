//! nvCOMP's ANS coder, where its library is present.

use anyhow::Result;

use crate::device::Bench;
use crate::report::Report;
use crate::timing::Effort;

pub(crate) fn run(_bench: &Bench, _effort: Effort, report: &mut Report) -> Result<()> {
    report.missing("nvCOMP ANS, from device memory", "GiB/s", "its interface is not bound")
}
