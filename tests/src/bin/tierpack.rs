//! The program `tierpack`, built next to the tests so that they can start it, with the fault points that they set.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tierpack_shm::faults::setup().expect("FAILPOINTS is as the tests write it");
    tierpack_tests::faults::listen().expect("the test gives a path of its own");
    tierpack_cli::main()
}
