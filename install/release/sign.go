package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// signatureSuffix is the end of the names of signatures. They have the format of "cosign sign-blob": ECDSA with the
// curve P-256 and SHA-256, in base64.
const signatureSuffix = ".sig"

// signedFiles are the files that have signatures. SHA256SUMS contains the digests of all others.
var signedFiles = []string{checksumsFile, provenanceFile}

// sign writes the signatures if there is a key.
func (b *builder) sign(dir string) error {
	if b.key == nil {
		return nil
	}
	for _, name := range signedFiles {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		digest := sha256.Sum256(content)
		signature, err := ecdsa.SignASN1(rand.Reader, b.key, digest[:])
		if err != nil {
			return err
		}
		text := base64.StdEncoding.EncodeToString(signature) + "\n"
		if err := os.WriteFile(filepath.Join(dir, name+signatureSuffix), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// verifySignatures returns an error if a signature is missing or was made with another key.
func verifySignatures(dir string, key *ecdsa.PublicKey) error {
	for _, name := range signedFiles {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name+signatureSuffix))
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s%s is missing: the release was not signed with a key", name, signatureSuffix)
		}
		if err != nil {
			return err
		}
		signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("%s%s: %w", name, signatureSuffix, err)
		}
		digest := sha256.Sum256(content)
		if !ecdsa.VerifyASN1(key, digest[:], signature) {
			return fmt.Errorf("%s was changed, or signed with another key", name)
		}
	}
	return nil
}

// readPrivateKey reads a key in the format of "openssl ecparam -genkey" or PKCS #8.
func readPrivateKey(file string) (*ecdsa.PrivateKey, error) {
	var key any
	err := readPEM(file, func(block *pem.Block) (err error) {
		switch block.Type {
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if private, ok := key.(*ecdsa.PrivateKey); ok && private.Curve == elliptic.P256() {
		return private, nil
	}
	return nil, fmt.Errorf("%s contains no private ECDSA key with the curve P-256 that is not encrypted", file)
}

// readPublicKey reads a key in the format of "openssl ec -pubout" or cosign.pub.
func readPublicKey(file string) (*ecdsa.PublicKey, error) {
	var key any
	err := readPEM(file, func(block *pem.Block) (err error) {
		if block.Type == "PUBLIC KEY" {
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if public, ok := key.(*ecdsa.PublicKey); ok && public.Curve == elliptic.P256() {
		return public, nil
	}
	return nil, fmt.Errorf("%s contains no public ECDSA key with the curve P-256", file)
}

// readPEM calls read with each block of a file.
func readPEM(file string, read func(*pem.Block) error) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if err := read(block); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}
