"""The API for other systems and staff: orders, payments, wallets."""
