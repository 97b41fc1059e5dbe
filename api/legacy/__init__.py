"""Routes that Nova has frozen or that answer nothing here. Old clients call them; nothing else imports them."""
