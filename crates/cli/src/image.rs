//! The commands `image build` and `venv build`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use sandglass_host::image::{self, BASE, Build, Packages};
use sandglass_host::runtime::Python;

/// `sandglass-host image …`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Builds it, from a base image of this machine or of a registry.
    Build(ImageArgs),
    /// Makes the base image from Debian's packages, for machines that reach no registry of images. It needs mmdebstrap, and root.
    Base {
        /// Its name.
        #[arg(long, default_value = BASE)]
        tag: String,
        /// Debian's release.
        #[arg(long)]
        suite: Option<String>,
        /// Where its packages come from.
        #[arg(long)]
        mirror: Option<String>,
    },
}

/// The way an image is to be built.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// The image that it starts from, with Python 3.11 or newer.
    #[arg(long)]
    base: Option<String>,
    #[command(flatten)]
    packages: PackagesArgs,
    /// Its name.
    #[arg(long)]
    tag: Option<String>,
}

/// Packages that are to be installed; without any of it the full list.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct PackagesArgs {
    /// Only numpy, pandas and the few others of the short list.
    #[arg(long)]
    slim: bool,
    /// The packages of this file, as pip reads it, and those that they need. Only wheels are installed.
    #[arg(long, value_name = "FILE")]
    requirements: Option<PathBuf>,
}

/// `sandglass-host venv …`
#[derive(Debug, Subcommand)]
pub enum VenvCommand {
    /// Makes it, or brings it up to date.
    Build {
        /// Its folder, which all users have to be able to read when the host is root.
        folder: PathBuf,
        /// The packages that go in.
        #[command(flatten)]
        packages: PackagesArgs,
        /// The Python that it is made with.
        #[arg(long)]
        python: Option<PathBuf>,
    },
}

impl PackagesArgs {
    fn read(self) -> Result<Packages, String> {
        match self.requirements {
            Some(file) => std::fs::read_to_string(&file)
                .map(Packages::Listed)
                .map_err(|error| format!("{} cannot be read: {error}", file.display())),
            None if self.slim => Ok(Packages::Slim),
            None => Ok(Packages::All),
        }
    }
}

/// Runs `image …`.
///
/// # Errors
/// Why there is no image.
pub async fn image(command: ImageCommand) -> Result<u8, String> {
    let name = match command {
        ImageCommand::Build(ImageArgs { base, packages, tag }) => {
            let packages = packages.read()?;
            let build = Build { base, packages, tag };
            image::build(&build, |line| println!("{line}")).await
        }
        ImageCommand::Base { tag, suite, mirror } => image::base(suite.as_deref(), mirror.as_deref(), &tag)
            .await
            .map(|()| tag),
    };
    println!("made {}", name.map_err(|error| error.to_string())?);
    Ok(0)
}

/// Runs `venv …`.
///
/// # Errors
/// Why there is no environment.
pub async fn venv(command: VenvCommand) -> Result<u8, String> {
    let VenvCommand::Build {
        folder,
        packages,
        python,
    } = command;
    let packages = packages.read()?;
    let python = Python::find(python.as_deref())
        .await
        .map_err(|error| error.to_string())?;
    let made = image::venv(&folder, &python.executable, &packages, |line| println!("{line}")).await;
    let program = made.map_err(|error| error.to_string())?;
    println!("made: sandglass-host serve --python {}", program.display());
    Ok(0)
}
