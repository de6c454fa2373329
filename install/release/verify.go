package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// verifyChecksums returns the number of files in SHA256SUMS. It returns an error if a file is missing or was changed,
// if there are other files, or if the provenance is about other files.
func verifyChecksums(dir string) (int, error) {
	sums, err := readChecksums(filepath.Join(dir, checksumsFile))
	if err != nil {
		return 0, err
	}
	for name, want := range sums {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return 0, err
		}
		if digest := sha256.Sum256(content); hex.EncodeToString(digest[:]) != want {
			return 0, fmt.Errorf("%s was changed: its SHA-256 is %x, but %s has %s", name, digest, checksumsFile, want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		if sums[entry.Name()] == "" && !slices.Contains(signedFiles, signedBy(entry.Name())) {
			return 0, fmt.Errorf("%s is not in %s", entry.Name(), checksumsFile)
		}
	}
	return len(sums), verifyProvenance(filepath.Join(dir, provenanceFile), sums)
}

// signedBy returns the file that a signature is about. The workflow adds bundles of cosign.
func signedBy(name string) string {
	return strings.TrimSuffix(strings.TrimSuffix(name, signatureSuffix), ".sigstore.json")
}

// readChecksums returns the digests of the files by name.
func readChecksums(file string) (map[string]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(content)) {
		digest, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || name != filepath.Base(name) || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: invalid line %q", file, line)
		}
		sums[name] = digest
	}
	return sums, nil
}

func verifyProvenance(file string, sums map[string]string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	statement := &intoto.Statement{}
	if err := protojson.Unmarshal(content, statement); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := statement.Validate(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	described := map[string]string{}
	for _, subject := range statement.GetSubject() {
		described[subject.GetName()] = subject.GetDigest()["sha256"]
	}
	for name, digest := range sums {
		if described[name] != digest {
			return fmt.Errorf("%s does not describe %s with the SHA-256 %s", file, name, digest)
		}
	}
	return nil
}
