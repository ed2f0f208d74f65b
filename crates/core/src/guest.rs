//! The guest's Python runtime, embedded in the host. Native backends mount the same files.

macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../python/", $name)))
    };
}

/// Every file of the package `sandglass` that sandboxes need: its path in the package, and its source. Files for notebooks only are left
/// out.
pub const FILES: &[(&str, &str)] = &[
    file!("__init__.py"),
    file!("__main__.py"),
    file!("ahead/__init__.py"),
    file!("ahead/survey.py"),
    file!("ahead/syscall_gate.py"),
    file!("browser/__init__.py"),
    file!("browser/bridge.py"),
    file!("browser/guest.py"),
    file!("browser/preload.py"),
    file!("native/__init__.py"),
    file!("native/bridge.py"),
    file!("native/changed_files.py"),
    file!("native/channel.py"),
    file!("native/container.py"),
    file!("native/delimiter.py"),
    file!("native/forks.py"),
    file!("native/frames.py"),
    file!("native/guest.py"),
    file!("native/host_loop.py"),
    file!("native/hot_pages.py"),
    file!("native/kernel_guest.py"),
    file!("native/landlock.py"),
    file!("native/leftovers.py"),
    file!("native/paused.py"),
    file!("native/pipes.py"),
    file!("native/recorded_guest.py"),
    file!("native/recorder.py"),
    file!("native/rlimits.py"),
    file!("native/user_forks.py"),
    file!("native/zygote.py"),
    file!("native/zygote_memory.py"),
    file!("runtime/__init__.py"),
    file!("runtime/bridge.py"),
    file!("runtime/collector.py"),
    file!("runtime/compiling.py"),
    file!("runtime/completion.py"),
    file!("runtime/displays.py"),
    file!("runtime/errors.py"),
    file!("runtime/figures.py"),
    file!("runtime/files.py"),
    file!("runtime/guards.py"),
    file!("runtime/helpers.py"),
    file!("runtime/ipython.py"),
    file!("runtime/loop.py"),
    file!("runtime/namespace.py"),
    file!("runtime/output.py"),
    file!("runtime/pristine.py"),
    file!("runtime/profiles.py"),
    file!("runtime/reading.py"),
    file!("runtime/recursion.py"),
    file!("runtime/reserve.py"),
    file!("runtime/running.py"),
    file!("runtime/runtime.py"),
    file!("runtime/signals.py"),
    file!("runtime/sources.py"),
    file!("runtime/substitutes.py"),
    file!("runtime/tools.py"),
    file!("runtime/tracebacks.py"),
    file!("runtime/user_code.py"),
    file!("runtime/values.py"),
    file!("runtime/warning_origin.py"),
    file!("runtime/wire.py"),
    file!("state/__init__.py"),
    file!("state/by_value.py"),
    file!("state/cell_files.py"),
    file!("state/foreign.py"),
    file!("state/lz4_frame.py"),
    file!("state/pickling.py"),
    file!("state/portable/__init__.py"),
    file!("state/portable/arrays.py"),
    file!("state/portable/classes.py"),
    file!("state/portable/codec.py"),
    file!("state/portable/codecs.py"),
    file!("state/portable/frames.py"),
    file!("state/portable/functions.py"),
    file!("state/portable/generators.py"),
    file!("state/portable/graph.py"),
    file!("state/portable/layout.py"),
    file!("state/portable/libraries.py"),
    file!("state/portable/made_classes.py"),
    file!("state/portable/names.py"),
    file!("state/portable/pickles.py"),
    file!("state/portable/reading.py"),
    file!("state/portable/writing.py"),
    file!("state/state.py"),
    file!("state/stateless.py"),
    file!("vendored/__init__.py"),
    // Pages have no stateless runs.
    #[cfg(not(target_arch = "wasm32"))]
    file!("vendored/cloudpickle/__init__.py"),
    #[cfg(not(target_arch = "wasm32"))]
    file!("vendored/cloudpickle/cloudpickle.py"),
    #[cfg(not(target_arch = "wasm32"))]
    file!("vendored/cloudpickle/cloudpickle_fast.py"),
];

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::FILES;

    #[test]
    fn every_file_of_the_package_is_embedded() {
        let folder = std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/python"));
        let mut names: Vec<String> = Vec::new();
        let mut folders = vec![folder.clone()];
        while let Some(at) = folders.pop() {
            for entry in std::fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&folder).unwrap().display().to_string();
                if path.is_dir() && !["adapters", "client", "jupyter"].contains(&name.as_str()) {
                    folders.push(path);
                } else if name.ends_with(".py") {
                    names.push(name);
                }
            }
        }
        names.sort();
        let embedded: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, names);
    }
}
