//! The accounts: a fenced file for each, with its balance as a number.

use std::{error::Error, path::PathBuf};

use tenure::{
    Lease,
    fence::{FencedFile, FileError},
};

/// How many accounts there are, and what each has at the start.
pub(crate) const ACCOUNTS: usize = 5;
const START: i64 = 1000;

pub(crate) struct Bank {
    folder: PathBuf,
}

impl Bank {
    pub(crate) fn open(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The name of the lock of an account.
    pub(crate) fn lock_of(account: usize) -> String {
        format!("account/{account}")
    }

    fn file(&self, account: usize) -> FencedFile {
        FencedFile::new(self.folder.join(format!("account-{account}.txt")))
    }

    fn balance(&self, account: usize) -> Result<i64, Box<dyn Error>> {
        match self.file(account).read()? {
            Some(text) => Ok(String::from_utf8(text)?.trim().parse()?),
            None => Ok(START),
        }
    }

    pub(crate) fn balances(&self) -> Result<Vec<i64>, Box<dyn Error>> {
        (0..ACCOUNTS).map(|account| self.balance(account)).collect()
    }

    pub(crate) fn total(&self) -> Result<i64, Box<dyn Error>> {
        Ok(self.balances()?.iter().sum())
    }

    /// Moves money, if there is enough. Each account is shown the token of its own lock, and refuses a former holder.
    pub(crate) fn transfer(
        &self,
        (from, payer): (usize, &Lease),
        (to, payee): (usize, &Lease),
        amount: i64,
    ) -> Result<bool, Box<dyn Error>> {
        // Both marks first: from here on no former holder writes between what is read and what is written.
        self.file(from).touch(payer.pass())?;
        self.file(to).touch(payee.pass())?;
        let (left, right) = (self.balance(from)?, self.balance(to)?);
        if left < amount {
            return Ok(false);
        }
        self.write(from, payer, left - amount)?;
        self.write(to, payee, right + amount)?;
        Ok(true)
    }

    fn write(&self, account: usize, lease: &Lease, balance: i64) -> Result<(), FileError> {
        self.file(account).write(lease.pass(), format!("{balance}\n").as_bytes())
    }
}
