//! Finds a Vulkan driver, installs one where that is wanted, and gives the steps the environment that it needs.

use crate::Flags;
use crate::runner::{Outcome, Runner};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Vulkan's loader looks for drivers on Linux.
const ICD_DIRS: [&str; 4] =
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/local/etc/vulkan/icd.d"];
/// The package of Debian and Ubuntu with the software driver, which brings the loader along.
const PACKAGE: &str = "mesa-vulkan-drivers";

/// What this machine can run kernels on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Driver {
    /// A graphics card, or a choice that the caller or the system has made: the loader decides.
    System,
    /// Only Mesa's software driver; its description.
    Software(PathBuf),
    /// Nothing.
    None,
}

/// Makes a driver available to the steps as far as the flags ask for it, and says which.
pub(crate) fn prepare(runner: &mut Runner, flags: Flags) -> Outcome {
    let mut driver = find(runner);
    if driver == Driver::None && flags.install_driver {
        install(runner)?;
        driver = find(runner);
        if driver == Driver::None {
            return Err(format!("{PACKAGE} is installed, but there is no driver in {}", ICD_DIRS.join(", ")).into());
        }
    }
    match &driver {
        Driver::System => println!("Vulkan driver: the system's"),
        Driver::Software(icd) => {
            println!("Vulkan driver: Mesa's software driver, {}", icd.display());
            // No other driver of the package is tried, which would only print that it found no card.
            runner.set("VK_DRIVER_FILES", icd.to_string_lossy());
        }
        Driver::None if flags.require_gpu => {
            return Err(
                "no Vulkan driver found\n  help: `cargo xtask ci --install-driver` installs a software one (Debian, as root)".into()
            );
        }
        Driver::None => println!(
            "no Vulkan driver found: what runs on a GPU is skipped\n  `cargo xtask ci --install-driver` installs a software one and \
             runs everything (Debian, as root)"
        ),
    }
    runner.has_gpu = driver != Driver::None;
    environment(runner)
}

/// Variables that make runs alike on every machine.
fn environment(runner: &mut Runner) -> Outcome {
    if runner.has_gpu {
        // A test that finds no adapter now fails rather than skips.
        runner.set("MONOPASS_REQUIRE_GPU", "1");
    }
    let private = runner.target().join("xdg");
    let cache = runner.target().join("mesa-cache");
    for dir in [&private, &cache] {
        std::fs::create_dir_all(dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    }
    if runner.get("XDG_RUNTIME_DIR").is_none() {
        // Without one, drivers print a complaint in the midst of the results.
        runner.set("XDG_RUNTIME_DIR", private.to_string_lossy());
    }
    // The software driver compiles kernels at the first dispatch; its cache saves that the second time.
    runner.set("MESA_SHADER_CACHE_DIR", cache.to_string_lossy());
    runner.set("LP_NUM_THREADS", "2");
    Ok(())
}

fn find(runner: &Runner) -> Driver {
    if !cfg!(target_os = "linux") {
        return Driver::System;
    }
    if ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().any(|name| runner.get(name).is_some()) {
        return Driver::System;
    }
    let icds = icds();
    let Some(software) = icds.iter().find(|path| name_of(path).starts_with("lvp_icd")) else {
        return if icds.is_empty() || !has_card() { Driver::None } else { Driver::System };
    };
    if has_card() && icds.len() > 1 { Driver::System } else { Driver::Software(software.clone()) }
}

/// Descriptions of drivers, in order of name.
fn icds() -> Vec<PathBuf> {
    let listed = ICD_DIRS.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = listed.filter(|path| path.extension().is_some_and(|ext| ext == "json")).collect();
    found.sort();
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether there is a graphics card that a driver may open.
fn has_card() -> bool {
    let has_render_node = std::fs::read_dir("/dev/dri")
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("renderD")));
    has_render_node || Path::new("/dev/nvidiactl").exists()
}

/// Installs the software driver.
fn install(runner: &mut Runner) -> Outcome {
    let by_hand = format!("install it by hand: apt-get update && apt-get install --no-install-recommends {PACKAGE}");
    if !works(Command::new("apt-get").arg("--version")) {
        return Err(format!(
            "no Vulkan driver found, and no apt-get to install {PACKAGE} with\n  help: install a Vulkan driver by the system's own means"
        )
        .into());
    }
    if !is_root() {
        return Err(format!("installing a Vulkan driver needs root\n  help: run this command as root, or {by_hand}").into());
    }
    runner.set("DEBIAN_FRONTEND", "noninteractive");
    let outcome = runner.step("package lists", Command::new("apt-get").args(["update", "-qq"])).and_then(|()| {
        let args = ["install", "-y", "-qq", "--no-install-recommends", PACKAGE];
        runner.step("software driver", Command::new("apt-get").args(args))
    });
    outcome.map_err(|error| format!("{error}\n  help: {by_hand}").into())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether a program starts and ends well; what it prints is not shown.
pub(crate) fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
