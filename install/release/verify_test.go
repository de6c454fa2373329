package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newKeys returns the files of a new private and public key.
func newKeys(t *testing.T, curve elliptic.Curve) (private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err1 := x509.MarshalPKCS8PrivateKey(key)
	pub, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "private.pem"), filepath.Join(dir, "public.pem")
	for file, block := range map[string]*pem.Block{
		private: {Type: "PRIVATE KEY", Bytes: der}, public: {Type: "PUBLIC KEY", Bytes: pub},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return private, public
}

func TestVerify_NoticesEveryChange(t *testing.T) {
	r := newRepository(t)
	private, public := newKeys(t, elliptic.P256())
	dir := r.build(targets, "--key", private)
	verify := []string{"verify", "--directory", dir, "--key", public}
	if out, err := r.run(verify...); err != nil || !strings.Contains(out, "signed with") {
		t.Fatalf("verify printed %q (error %v)", out, err)
	}
	requireOpenSSL(t, dir, public)

	_, other := newKeys(t, elliptic.P256())
	r.requireError("SHA256SUMS was changed, or signed with another key", "verify", "--directory", dir, "--key", other)
	_, other = newKeys(t, elliptic.P384())
	r.requireError("contains no public ECDSA key with the curve P-256", "verify", "--directory", dir, "--key", other)

	for _, test := range []struct{ file, want string }{
		{"dynamic-controller-0.1.0.tgz", "dynamic-controller-0.1.0.tgz was changed: its SHA-256 is"},
		{"dynamic-controller_v0.1.0_image.tar", "_image.tar was changed: its SHA-256 is"},
		{"SHA256SUMS", "invalid line"},
		{"provenance.intoto.json", "provenance.intoto.json"},
		{"SHA256SUMS.sig", "SHA256SUMS.sig: illegal base64"},
	} {
		content := read(t, dir, test.file)
		change(t, filepath.Join(dir, test.file), append(bytes.Clone(content), '!'))
		r.requireError(test.want, verify...)
		change(t, filepath.Join(dir, test.file), content)
	}
	// Changes that keep the checksums right are found by the signatures.
	sums, provenance := read(t, dir, checksumsFile), read(t, dir, provenanceFile)
	change(t, filepath.Join(dir, checksumsFile), sums[bytes.IndexByte(sums, '\n')+1:])
	r.requireError("is not in SHA256SUMS", verify...)
	change(t, filepath.Join(dir, checksumsFile), sums)
	change(t, filepath.Join(dir, provenanceFile), bytes.Replace(provenance, []byte("Makefile"), []byte("makefile"), 1))
	r.requireError("provenance.intoto.json was changed, or signed with another key", verify...)
	change(t, filepath.Join(dir, provenanceFile), bytes.Replace(provenance, []byte(`.tgz"`), []byte(`.zip"`), 1))
	r.requireError("does not describe dynamic-controller-0.1.0.tgz", verify...)
	change(t, filepath.Join(dir, provenanceFile), provenance)

	if err := os.Remove(filepath.Join(dir, provenanceFile+signatureSuffix)); err != nil {
		t.Fatal(err)
	}
	r.requireError("provenance.intoto.json.sig is missing", verify...)
	if err := os.Remove(filepath.Join(dir, "blueprint.yaml")); err != nil {
		t.Fatal(err)
	}
	r.requireError("blueprint.yaml: no such file", verify...)
}

func change(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// requireOpenSSL checks that another program accepts a signature, if it is installed.
func requireOpenSSL(t *testing.T, dir, public string) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Log(err)
		return
	}
	script := `base64 -d SHA256SUMS.sig >"$1" && openssl dgst -sha256 -verify "$2" -signature "$1" SHA256SUMS`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "sh", filepath.Join(t.TempDir(), "signature"), public)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("openssl: %v: %s", err, out)
	}
}
