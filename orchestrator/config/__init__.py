"""Configuration: the files of the daemons, and the folder of manifests that states the intent."""
