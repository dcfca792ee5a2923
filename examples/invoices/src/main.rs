//! Sends an invoice under a lock: `cargo run -p invoices -- [URL]`.

mod invoices;

use std::{env, error::Error};

use invoices::Invoices;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let invoices = Invoices::new(tenure::connect(&url).await?);
    let token = invoices
        .send(42, async |token| println!("The invoice 42 goes to the printer, with token {token}"))
        .await?;
    println!("The printer refuses any smaller token than {token} from now on");
    Ok(())
}
