//! The kernels that sources and images name.

use std::collections::BTreeSet;

/// Names after `marker`, up to what is no part of a name; comments are left out.
fn names_after(text: &str, marker: &str) -> BTreeSet<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let names = code.flat_map(|line| {
        line.match_indices(marker).filter_map(|(at, _)| {
            let starts = !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let rest = line[at + marker.len()..].trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            (starts && end > 0 && !line.trim_start().starts_with("#define")).then(|| rest[..end].to_owned())
        })
    });
    names.collect()
}

/// Kernels that a source defines: `KERNEL void NAME(`.
pub(crate) fn defined(text: &str) -> BTreeSet<String> {
    names_after(text, "KERNEL void ")
}

/// Kernels that a source hands to the simulator: `EXPORT_KERNEL(NAME)`.
pub(crate) fn exported(text: &str) -> BTreeSet<String> {
    names_after(text, "EXPORT_KERNEL(")
}

/// Kernels of an image: entries of PTX, or sections of code of a cubin.
pub(crate) fn in_image(image: &[u8]) -> BTreeSet<String> {
    if image.starts_with(b"\x7fELF") {
        let text = image.split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(b".text."));
        return text.filter_map(|name| Some(std::str::from_utf8(name).ok()?.to_owned())).collect();
    }
    names_after(&String::from_utf8_lossy(image), ".entry ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn kernels_are_found_in_sources() {
        let source = "#define KERNEL void x\n// KERNEL void old(int a)\nKERNEL void decode_raw(const X* x) {\n}\n\
            KERNEL void b_2(\n  int a) {}\nEXPORT_KERNEL(decode_raw)\n#define EXPORT_KERNEL(f)\n";
        assert_eq!(defined(source), set(["decode_raw", "b_2"]));
        assert_eq!(exported(source), set(["decode_raw"]));
    }

    #[test]
    fn kernels_are_found_in_images() {
        let ptx = b"// comment\n.visible .entry decode_raw(\n.param .u64 a\n)\n.visible .entry b_2()";
        assert_eq!(in_image(ptx), set(["decode_raw", "b_2"]));
        let cubin = b"\x7fELF\x02\0.shstrtab\0.text.decode_raw\0.nv.info.decode_raw\0.text.b_2\0";
        assert_eq!(in_image(cubin), set(["decode_raw", "b_2"]));
    }
}
