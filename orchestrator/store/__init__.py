"""The store: etcd behind a small port, and what every user of it needs: keys, mirror, lease, heartbeat, election."""
