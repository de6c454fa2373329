package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The plugin ptp connects each Pod by a pair of virtual Ethernet devices to the node's routing table. Packets between
// two Pods of a node are therefore routed too, and pass the rules of kube-proxy.
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

// writeCNIConfig replaces the file in one step, because containerd reads it when it changes.
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
