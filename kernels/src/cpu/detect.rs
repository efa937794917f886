//! Which instructions this machine has, and whether those in question are fast.

/// Whether the functions of `avx2` can run, without deposits.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("popcnt")
}

/// Whether the functions of `bmi2.rs` can run.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_bmi2() -> bool {
    has_avx2() && is_x86_feature_detected!("bmi2")
}

/// Whether `pext` and `pdep` take one step each.
///
/// AMD before Zen 3 (family 17h and older, and Hygon, which is Zen 1) runs them as microcode, up to 300 cycles.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_fast_deposit() -> bool {
    use core::arch::x86_64::__cpuid;
    const FIRST_FAST_FAMILY: u32 = 0x19;
    let vendor = __cpuid(0);
    let vendor: Vec<u8> =
        [vendor.ebx, vendor.edx, vendor.ecx].into_iter().flat_map(u32::to_le_bytes).collect();
    is_fast(&vendor, family(__cpuid(1).eax), FIRST_FAST_FAMILY)
}

/// The family: base family, and where that is 15 the extended one added.
#[cfg(target_arch = "x86_64")]
const fn family(eax: u32) -> u32 {
    let base = eax >> 8 & 0xF;
    if base == 0xF { base + (eax >> 20 & 0xFF) } else { base }
}

#[cfg(target_arch = "x86_64")]
fn is_fast(vendor: &[u8], family: u32, first_fast_family: u32) -> bool {
    match vendor {
        b"AuthenticAMD" => family >= first_fast_family,
        b"HygonGenuine" => false,
        _ => true,
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn has_bmi2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn has_fast_deposit() -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn zen_1_and_2_are_not_fast() {
        // Zen 2 (17h), Zen 3 (19h), Zen 5 (1Ah), a recent Intel (6).
        let families = [0x0087_0F10, 0x00A2_0F12, 0x00B4_0F40, 0x0009_06ED].map(family);
        assert_eq!(families, [0x17, 0x19, 0x1A, 6]);
        let fast = families.map(|family| is_fast(b"AuthenticAMD", family, 0x19));
        assert_eq!(fast, [false, true, true, false]);
        assert!(is_fast(b"GenuineIntel", 6, 0x19));
        assert!(!is_fast(b"HygonGenuine", 0x18, 0x19));
    }
}
