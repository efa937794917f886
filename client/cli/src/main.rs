//! The binary `tierpack`; `lib.rs` is the program.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tierpack_cli::main()
}
