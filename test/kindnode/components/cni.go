package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The plugin ptp connects each Pod to the node's routing table through a pair of virtual Ethernet devices. Packets
// between two Pods on the same node are therefore routed too, and pass through kube-proxy's rules.
const cniConfig = `{
  "cniVersion": "1.0.0",
  "name": "node-network",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`

// writeCNIConfig replaces the file atomically, because containerd reads the file whenever it changes.
func writeCNIConfig(file, podCIDR string) error {
	config := fmt.Appendf(nil, cniConfig, podCIDR)
	existing, err := os.ReadFile(file)
	if err == nil && bytes.Equal(existing, config) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	const readable = 0o644
	next := filepath.Join(filepath.Dir(file), ".next")
	if err := os.WriteFile(next, config, readable); err != nil {
		return err
	}
	return os.Rename(next, file)
}
