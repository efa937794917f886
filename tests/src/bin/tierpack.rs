//! The program `tierpack`, built beside the tests so that they can start it.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tierpack_cli::main()
}
