//! The Python runtime, embedded: the same files that native backends mount.

macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../pyodide-glue/python/sandglass/", $name)))
    };
}

/// Every file of the package `sandglass`, but for what is for notebooks only: name, with its folder, and source.
pub const FILES: &[(&str, &str)] = &[
    file!("__init__.py"),
    file!("__main__.py"),
    file!("bounds.py"),
    file!("bridge.py"),
    file!("browser.py"),
    file!("cell_files.py"),
    file!("changes.py"),
    file!("channel.py"),
    file!("container.py"),
    file!("delimiter.py"),
    file!("descriptors.py"),
    file!("displays.py"),
    file!("errors.py"),
    file!("execution.py"),
    file!("figures.py"),
    file!("files.py"),
    file!("foreign.py"),
    file!("forks.py"),
    file!("frames.py"),
    file!("guards.py"),
    file!("helpers.py"),
    file!("ipython.py"),
    file!("kernel.py"),
    file!("landlock.py"),
    file!("looks.py"),
    file!("loop.py"),
    file!("namespace.py"),
    file!("native.py"),
    file!("output.py"),
    file!("pickling.py"),
    file!("pipes.py"),
    file!("preload.py"),
    file!("pristine.py"),
    file!("profiles.py"),
    file!("reading.py"),
    file!("recursion.py"),
    file!("reserve.py"),
    file!("runtime.py"),
    file!("signals.py"),
    file!("speculate/__init__.py"),
    file!("speculate/fence.py"),
    file!("speculate/survey.py"),
    file!("state.py"),
    file!("stateless.py"),
    file!("strays.py"),
    file!("tracebacks.py"),
    file!("turns.py"),
    file!("values.py"),
    file!("warned.py"),
    file!("zygote.py"),
];

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::FILES;

    #[test]
    fn every_file_of_the_package_is_embedded() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/pyodide-glue/python/sandglass"));
        let mut names: Vec<String> = Vec::new();
        for part in ["", "speculate"] {
            let files = std::fs::read_dir(folder.join(part)).unwrap();
            let files = files.map(|entry| std::path::Path::new(part).join(entry.unwrap().file_name()));
            names.extend(
                files
                    .map(|path| path.display().to_string())
                    .filter(|name| name.ends_with(".py")),
            );
        }
        names.sort();
        let embedded: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, names);
    }
}
