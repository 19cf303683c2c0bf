"""What gateways and doors share on the wire: header names, a lean HTTP/1.1 client, connection pools."""
