//! The compiled kernels, and which of them a device runs.
//!
//! `cargo run -p xtask -- gen` makes them from `kernels/cuda`; nothing of CUDA is needed to build with them.

/// A source file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    /// `decode.cu`: blocks and overlays.
    Decode,
    /// `gather.cu`: rows by their numbers, through a cache.
    Gather,
}

impl Module {
    /// The names of its kernels.
    pub const fn kernels(self) -> &'static [&'static str] {
        match self {
            Self::Decode => &[
                "decode_raw",
                "decode_ibp",
                "decode_planes4",
                "decode_planes3",
                "decode_planes222",
                "decode_sparse",
                "overlay_rows",
            ],
            Self::Gather => &["gather", "sweep_cache"],
        }
    }
}

/// What a driver loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// The module's name.
    pub name: &'static str,
    /// `sm_` and a number: code of that architecture; `compute_80`: text that the driver compiles.
    pub arch: &'static str,
    /// A cubin, or PTX without a zero at its end.
    pub bytes: &'static [u8],
}

/// The images of one module: PTX, then code from the oldest architecture on.
type Images = [Image; 5];

macro_rules! images {
    ($name:literal: $($arch:literal.$extension:literal)*) => {
        [$(Image {
            name: $name,
            arch: $arch,
            bytes: include_bytes!(concat!("../../images/", $name, ".", $arch, ".", $extension)),
        }),*]
    };
}

// For example, the first: Image { name: "decode", arch: "compute_80", bytes: "decode.compute_80.ptx" }.
static DECODE: Images =
    images!("decode": "compute_80"."ptx" "sm_80"."cubin" "sm_90"."cubin" "sm_100"."cubin" "sm_120"."cubin");
static GATHER: Images =
    images!("gather": "compute_80"."ptx" "sm_80"."cubin" "sm_90"."cubin" "sm_100"."cubin" "sm_120"."cubin");

/// Compute capability of the code of each architecture.
const CAPABILITIES: [(i32, i32); 4] = [(8, 0), (9, 0), (10, 0), (12, 0)];

/// The image for a device of this compute capability.
///
/// Code runs on devices of its own major version, from its minor version on; PTX is for all others.
pub fn choose(module: Module, major: i32, minor: i32) -> Image {
    let [ptx, code @ ..] = match module {
        Module::Decode => &DECODE,
        Module::Gather => &GATHER,
    };
    let fits = |&(_, (its_major, its_minor)): &(&Image, (i32, i32))| its_major == major && its_minor <= minor;
    let of_device = code.iter().zip(CAPABILITIES).rfind(fits);
    of_device.map_or(*ptx, |(image, _)| *image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: [Module; 2] = [Module::Decode, Module::Gather];

    #[test]
    fn devices_get_code_of_their_own_architecture() {
        for (capability, arch) in [
            ((8, 0), "sm_80"),
            ((8, 9), "sm_80"),
            ((9, 0), "sm_90"),
            ((10, 0), "sm_100"),
            ((10, 3), "sm_100"),
            ((12, 0), "sm_120"),
            ((12, 1), "sm_120"),
            ((7, 5), "compute_80"),
            ((11, 0), "compute_80"),
            ((13, 0), "compute_80"),
        ] {
            for module in MODULES {
                assert_eq!(choose(module, capability.0, capability.1).arch, arch, "{capability:?}");
            }
        }
    }

    #[test]
    fn images_are_what_their_names_say() {
        for (module, images) in MODULES.into_iter().zip([&DECODE, &GATHER]) {
            for image in images {
                assert_eq!(image.name, choose(module, 9, 0).name);
                let is_code = image.arch.starts_with("sm_");
                assert_eq!(image.bytes.starts_with(b"\x7fELF"), is_code, "{} {}", image.name, image.arch);
                if !is_code {
                    let text = std::str::from_utf8(image.bytes).unwrap();
                    assert!(
                        text.contains(".version 9.0\n") && text.contains(".target sm_80\n"),
                        "{}",
                        image.name
                    );
                    let kernels = module.kernels().iter().map(|name| format!(".visible .entry {name}("));
                    assert!(kernels.clone().all(|entry| text.contains(&entry)), "{}", image.name);
                    assert_eq!(text.matches(".visible .entry ").count(), kernels.len(), "{}", image.name);
                }
            }
            for ((major, minor), image) in CAPABILITIES.into_iter().zip(&images[1..]) {
                assert_eq!(image.arch, format!("sm_{}", 10 * major + minor));
            }
        }
    }
}
