"""Generated from etcd.proto, which says how; never edited by hand."""
