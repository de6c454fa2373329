package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "root directory of the repository")
	flag.Parse()
	if err := update(*root); err != nil {
		fmt.Fprintln(os.Stderr, "bench-report:", err)
		os.Exit(1)
	}
}

// update writes all files of the report whose content has changed.
func update(root string) error {
	files, err := makeReport(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == content {
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", name)
	}
	return nil
}
