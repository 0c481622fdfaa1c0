//! Guards the checkpoint that ships: it is what its program makes, and it loads.

use monopass::blocks::checkpoint;
use monopass::fs::DirFiles;

#[path = "../examples/make_checkpoint.rs"]
mod make_checkpoint;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-bytes");

#[test]
fn the_shipped_files_are_those_that_the_program_makes() {
    let mut n_bytes = 0;
    for (name, bytes) in make_checkpoint::files().unwrap() {
        let shipped = std::fs::read(format!("{DIR}/{name}")).unwrap();
        assert!(shipped == bytes, "{name} differs; `cargo run --example make_checkpoint models/tiny-bytes` makes it anew");
        n_bytes += bytes.len();
    }
    assert!((50_000..150_000).contains(&n_bytes), "{n_bytes} bytes, and the README says about 100 kB");
}

#[test]
fn the_shipped_model_has_a_token_for_each_byte() {
    let model = checkpoint::load(&DirFiles::open(DIR).unwrap()).unwrap();
    assert_eq!((model.config.vocab_size, model.config.n_layer), (256, 2));
    assert_eq!(model.config, make_checkpoint::config());
    assert!(model.warnings.is_empty(), "{:?}", model.warnings);
}
