//! SwiftShader, a second software driver with a browser's limits, unpacked from a package of Debian without installing it.

use crate::driver::works;
use crate::runner::{Outcome, Runner};
use std::path::Path;
use std::process::Command;

const PACKAGE: &str = "chromium-common";
const LIBRARY: &str = "usr/lib/chromium/libvk_swiftshader.so";

/// Path of a driver description for `VK_DRIVER_FILES`; `None` where there is no apt-get.
pub(crate) fn fetch(runner: &mut Runner) -> Outcome<Option<String>> {
    let dir = runner.target().join("swiftshader");
    let library = dir.join(LIBRARY);
    if !library.exists() {
        if !works(Command::new("apt-get").arg("--version")) {
            return Ok(None);
        }
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
        download(runner, &dir)?;
    }
    let icd = dir.join("icd.json");
    let text = format!(
        "{{\"file_format_version\": \"1.0.0\", \"ICD\": {{\"library_path\": {:?}, \"api_version\": \"1.0.5\"}}}}\n",
        library.display().to_string()
    );
    std::fs::write(&icd, text).map_err(|error| format!("cannot write {}: {error}", icd.display()))?;
    Ok(Some(icd.to_string_lossy().into_owned()))
}

fn download(runner: &mut Runner, dir: &Path) -> Outcome {
    // apt-get puts the package into the working directory, which steps have at the root: so by a shell.
    let script = "cd \"$1\" && apt-get download -qq \"$2\" && dpkg -x \"$2\"_*.deb . && rm \"$2\"_*.deb";
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(dir).arg(PACKAGE);
    runner.step("SwiftShader", &mut command).map_err(|error| format!("{error}\n  help: run `apt-get update` as root first").into())
}
