//! Images: what is read of them, and what is refused.

use std::ffi::CString;
use std::path::Path;

use crate::harness::{alone, find, load_image, open, ptx};

fn load_text(text: &str) -> u32 {
    let text = CString::new(text).expect("no NUL");
    load_image(text.as_ptr().cast()).0
}

#[test]
fn a_ptx_text_must_be_one_that_the_driver_and_the_device_take() {
    alone("modules::a_ptx_text_must_be_one_that_the_driver_and_the_device_take", &[], || {
        open();
        let good = ptx("legal_order", 2).into_string().expect("a text");
        assert_eq!(load_text(&good), 0);
        assert_eq!(load_text(&good.replace("9.0", "9.1")), 222);
        assert_eq!(load_text(&good.replace("9.0", "10.0")), 222);
        assert_eq!(load_text(&good.replace("9.0", "8.8")), 0);
        assert_eq!(load_text(&good.replace("sm_80", "sm_100")), 209);
        assert_eq!(load_text("no image"), 200);
    });
}

#[test]
fn a_kernel_must_be_in_the_image_and_in_the_source_with_the_same_parameters() {
    let said = alone(
        "modules::a_kernel_must_be_in_the_image_and_in_the_source_with_the_same_parameters",
        &[],
        || {
            open();
            for (kernel, params, asked, code) in [
                ("legal_order", 2, "legal_order", 0),
                ("legal_order", 2, "legal_syncwarp", 500),
                ("legal_order", 3, "legal_order", 200),
                ("not_in_the_source", 1, "not_in_the_source", 500),
            ] {
                let text = ptx(kernel, params);
                let (loaded, module) = load_image(text.as_ptr().cast());
                assert_eq!(loaded, 0);
                assert_eq!(find(module, asked).0, code, "{kernel} {params} {asked}");
                ok!(cuModuleUnload(module));
                assert_eq!(find(module, asked).0, 400);
            }
        },
    );
    assert!(said.contains("[8, 8, 8] bytes in the image, and of [8, 8] in its source"), "{said}");
    assert!(said.contains("not_in_the_source is in the image and has no CPU version"), "{said}");
}

/// The committed images.
fn images() -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/images");
    let entries = std::fs::read_dir(&folder).expect("the images are committed").flatten();
    let mut images: Vec<_> = entries.map(|entry| entry.path()).collect();
    images.retain(|path| path.extension().is_some_and(|end| end == "cubin" || end == "ptx"));
    images.sort();
    assert!(images.len() >= 5, "{images:?}");
    images
}

/// Loads every committed image; the names of those that this device takes.
fn taken() -> Vec<String> {
    let mut taken = Vec::new();
    for path in images() {
        let mut image = std::fs::read(&path).expect("the image can be read");
        image.push(0);
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        match load_image(image.as_ptr().cast()) {
            (0, module) => {
                if name.starts_with("decode") {
                    assert_eq!(find(module, "decode_raw").0, 0, "{name}");
                    assert_eq!(find(module, "overlay_rows").0, 0, "{name}");
                }
                taken.push(name);
            }
            (code, _) => assert_eq!(code, 209, "{name}"),
        }
    }
    taken
}

#[test]
fn a_device_takes_images_of_its_major_version_and_no_later_minor() {
    let name = "modules::a_device_takes_images_of_its_major_version_and_no_later_minor";
    for (major, minor, takes) in [
        ("9", "0", "sm_90.cubin"),
        ("8", "0", "sm_80.cubin"),
        ("8", "6", "sm_80.cubin"),
        ("12", "1", "sm_120.cubin"),
    ] {
        let variables = [("FAKE_CUDA_ATTR_75", major), ("FAKE_CUDA_ATTR_76", minor)];
        let said = alone(name, &variables, || {
            open();
            taken().iter().for_each(|name| println!("takes {name}"));
        });
        let cubins = said.lines().filter(|line| line.starts_with("takes ") && line.ends_with(".cubin"));
        let cubins: Vec<_> = cubins.collect();
        assert!(!cubins.is_empty() && cubins.iter().all(|line| line.ends_with(takes)), "{said}");
        assert!(said.contains("takes decode.compute_80.ptx"), "{said}");
    }
}
