//! Where the configuration file is looked for.

use std::path::{Path, PathBuf};

use super::problem::{Place, Problem, Problems};
use super::raw::Environment;

const HERE: &str = "onced.toml";
const INSTALLED: &str = "/etc/onced/onced.toml";

/// The configuration file: `argument` (from `--config`), else `ONCED_CONFIG`, else `onced.toml` in the working folder,
/// else `/etc/onced/onced.toml`. What the first two name is taken as it is, there or not.
///
/// # Errors
/// Nothing was named and neither file is there, or `ONCED_CONFIG` is empty or not UTF-8.
pub fn locate(argument: Option<PathBuf>, environment: &Environment) -> Result<PathBuf, Problems> {
    const VARIABLE: &str = "ONCED_CONFIG";
    if let Some(file) = argument {
        return Ok(file);
    }
    let wrong = |message: &str| {
        let place = Place::Variable(VARIABLE.to_owned());
        Problems(vec![Problem { place, key: String::new(), message: message.to_owned() }])
    };
    match environment.text(VARIABLE) {
        Some(Ok(file)) if file.is_empty() => Err(wrong("empty; name the file, or unset it")),
        Some(Ok(file)) => Ok(file.into()),
        Some(Err(_)) => Err(wrong("not UTF-8; use --config")),
        None => first_there([Path::new(HERE), Path::new(INSTALLED)]),
    }
}

fn first_there(files: [&Path; 2]) -> Result<PathBuf, Problems> {
    if let Some(file) = files.iter().find(|file| file.exists()) {
        return Ok((*file).to_owned());
    }
    let [here, installed] = files;
    let message = format!(
        "no configuration file here, nor at {}; name one with --config FILE or ONCED_CONFIG",
        installed.display()
    );
    let place = Place::File(here.to_owned());
    Err(Problems(vec![Problem { place, key: String::new(), message }]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_comes_before_the_variable() {
        let environment = Environment::from_iter([("ONCED_CONFIG", "/b.toml")]);
        let file = locate(Some("/a.toml".into()), &environment).unwrap();
        assert_eq!(file, Path::new("/a.toml"));
        assert_eq!(locate(None, &environment).unwrap(), Path::new("/b.toml"));
    }

    #[test]
    fn an_empty_variable_is_a_problem() {
        let environment = Environment::from_iter([("ONCED_CONFIG", "")]);
        let problems = locate(None, &environment).unwrap_err();
        assert_eq!(problems.to_string(), "ONCED_CONFIG: empty; name the file, or unset it");
    }

    #[test]
    fn the_working_folder_comes_before_the_installed_file() {
        let folder = tempfile::tempdir().unwrap();
        let (here, installed) = (folder.path().join("here"), folder.path().join("installed"));
        let nothing = first_there([&here, &installed]).unwrap_err().to_string();
        assert!(nothing.contains("--config FILE"), "{nothing}");
        std::fs::write(&installed, "").unwrap();
        assert_eq!(first_there([&here, &installed]).unwrap(), installed);
        std::fs::write(&here, "").unwrap();
        assert_eq!(first_there([&here, &installed]).unwrap(), here);
    }
}
