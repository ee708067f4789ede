"""The fleet's dashboard: pages made on the server, one small script for what moves."""
