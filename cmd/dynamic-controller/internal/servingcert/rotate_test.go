package servingcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"maps"
	"testing"
	"time"
)

const (
	day  = 24 * time.Hour
	host = "hook.system.svc"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// rotated returns the next bundle if all authorities are trusted.
func rotated(t testing.TB, b bundle, now time.Time) (next bundle, changed bool) {
	t.Helper()
	var trusted []*x509.Certificate
	if b.ca.Certificate != nil {
		trusted = b.authorities()
	}
	r, err := rotate(b, now, host, trusted)
	if err != nil {
		t.Fatal(err)
	}
	return r.bundle, len(r.reasons) > 0
}

// createdAt returns a bundle that was created at the given time.
func createdAt(t testing.TB, now time.Time) bundle {
	t.Helper()
	b, _ := rotated(t, bundle{}, now)
	return b
}

// encoded returns the contents of the Secret.
func encoded(t *testing.T, b bundle) map[string][]byte {
	t.Helper()
	data, err := b.encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRotate_CreatesCertificatesThatAPIServersAccept(t *testing.T) {
	b := createdAt(t, start)
	for _, now := range []time.Time{start.Add(-skew), start, start.Add(servingLifetime - time.Second)} {
		if err := b.check(now, host); err != nil {
			t.Errorf("%s: %v", now, err)
		}
	}
	for _, now := range []time.Time{start.Add(-skew - time.Minute), start.Add(servingLifetime + time.Second)} {
		if b.check(now, host) == nil {
			t.Errorf("%s: the certificate is valid", now)
		}
	}
	if b.check(start, "other.system.svc") == nil {
		t.Error("the certificate is valid for another name")
	}
	for name, c := range map[string]issued{"authority": b.ca, "certificate": b.serving} {
		if key, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
			t.Errorf("got key type %[2]T for the %[1]s", name, c.PublicKey)
		}
	}
}

func TestRotate_ContinuesWithTheSecretOfThePreviousLeader(t *testing.T) {
	b := createdAt(t, start)
	for _, now := range []time.Time{start.Add(-skew / 2), start, start.Add(60*day - time.Second)} {
		parsed, err := parse(encoded(t, b))
		if err != nil {
			t.Fatal(err)
		}
		if _, changed := rotated(t, parsed, now); changed {
			t.Errorf("%s: the certificates were rotated", now)
		}
	}
}

func TestRotate_RenewsAfterTwoThirdsOfTheLifetime(t *testing.T) {
	b := createdAt(t, start)
	next, changed := rotated(t, b, start.Add(60*day))
	if !changed || next.serving.Equal(b.serving.Certificate) || !next.ca.Equal(b.ca.Certificate) || len(next.older) > 0 {
		t.Error("not only the certificate was renewed")
	}
	if err := next.check(start.Add(149*day), host); err != nil {
		t.Error(err)
	}
}

func TestRotate_NewAuthorityMustBeTrustedFirst(t *testing.T) {
	old := createdAt(t, start)
	old, _ = rotated(t, old, start.Add(200*day)) // the certificate has expired
	renewed := start.Add(caLifetime * 2 / 3)

	both, changed := rotated(t, old, renewed)
	if !changed || both.ca.Equal(old.ca.Certificate) || len(both.older) != 1 || !both.older[0].Equal(old.ca.Certificate) {
		t.Fatal("got no new authority")
	}
	if !both.serving.Equal(old.serving.Certificate) {
		t.Error("the certificate was renewed before the new authority is trusted")
	}
	due := start.Add(260 * day)
	if r, err := rotate(both, due, host, old.authorities()); err != nil || len(r.reasons) > 0 {
		t.Errorf("got %v, %v before API servers trust the new authority", r.reasons, err)
	}
	next, changed := rotated(t, both, due)
	if !changed || next.serving.CheckSignatureFrom(both.ca.Certificate) != nil || len(next.older) != 1 {
		t.Fatal("got no certificate from the new authority, or the old authority was removed")
	}
	if last, changed := rotated(t, next, due.Add(settled-time.Minute)); changed {
		t.Errorf("got %d authorities before all replicas have the new certificate", len(last.authorities()))
	}
	last, changed := rotated(t, next, due.Add(settled))
	if !changed || len(last.older) > 0 || !last.serving.Equal(next.serving.Certificate) {
		t.Error("the old authority was not removed, or the certificate was renewed again")
	}
}

func TestRotate_DelaysRenewalForANewAuthority(t *testing.T) {
	b := createdAt(t, start)
	b, _ = rotated(t, b, start.Add(190*day)) // both must be renewed 60 days later
	both, _ := rotated(t, b, start.Add(250*day))
	if next, _ := rotated(t, both, start.Add(250*day+settled-time.Minute)); !next.serving.Equal(b.serving.Certificate) {
		t.Error("the certificate was renewed too early")
	}
	if next, _ := rotated(t, both, start.Add(250*day+settled)); next.serving.Equal(b.serving.Certificate) {
		t.Error("the certificate was not renewed")
	}
}

// The test covers several years. API servers with the current or the previous authorities must accept the current and
// the previous certificate.
func TestRotate_CertificateIsAlwaysValid(t *testing.T) {
	b := createdAt(t, start)
	rotations := 0
	for now := start; now.Before(start.Add(3 * caLifetime)); now = now.Add(12 * time.Hour) {
		next, changed := rotated(t, b, now)
		if changed {
			rotations++
		}
		// Replicas and API servers can still have the previous state.
		if err := next.check(now.Add(settled), host); err != nil {
			t.Fatalf("%s: %v", now, err)
		}
		mixed := next
		mixed.serving = b.serving
		if err := mixed.check(now, host); err != nil {
			t.Fatalf("%s: previous certificate: %v", now, err)
		}
		mixed = b
		mixed.serving = next.serving
		if err := mixed.check(now, host); err != nil {
			t.Fatalf("%s: previous authorities: %v", now, err)
		}
		b = next
	}
	if rotations > 3*(365/60+3) {
		t.Errorf("%d rotations", rotations)
	}
}

func TestRotate_ReplacesUnusableSecrets(t *testing.T) {
	good, other := createdAt(t, start), createdAt(t, start)
	elsewhere, err := newServing(start, good.ca, "other.system.svc")
	if err != nil {
		t.Fatal(err)
	}
	wrongName := good
	wrongName.serving = elsewhere
	foreign := good
	foreign.serving = other.serving
	withEntry := func(key string, value []byte) map[string][]byte {
		data := maps.Clone(encoded(t, good))
		data[key] = value
		return data
	}
	for name, test := range map[string]struct {
		data   map[string][]byte
		now    time.Time
		keepCA bool
	}{
		"empty":                               {data: nil},
		"malformed authority":                 {data: withEntry(caKey, []byte("x"))},
		"malformed key of the authority":      {data: withEntry(caKeyKey, []byte("x"))},
		"key of another authority":            {data: withEntry(caKeyKey, encoded(t, other)[caKeyKey])},
		"public key, not private key":         {data: withEntry(caKeyKey, encoded(t, good)[caKey])},
		"certificate instead of an authority": {data: withEntry(caKey, encoded(t, good)[servingKey])},
		"malformed certificate":               {data: withEntry(servingKey, bytes.Repeat([]byte{0}, 100)), keepCA: true},
		"key of another certificate":          {data: withEntry(serverKey, encoded(t, other)[serverKey]), keepCA: true},
		"certificate from another authority":  {data: encoded(t, foreign), keepCA: true},
		"certificate for another name":        {data: encoded(t, wrongName), keepCA: true},
		"expired certificate":                 {data: encoded(t, good), now: start.Add(servingLifetime + day), keepCA: true},
		"expired authority":                   {data: encoded(t, good), now: start.Add(caLifetime + day)},
	} {
		t.Run(name, func(t *testing.T) {
			now := start
			if !test.now.IsZero() {
				now = test.now
			}
			parsed, _ := parse(test.data)
			next, changed := rotated(t, parsed, now)
			if err := next.check(now, host); err != nil || !changed {
				t.Errorf("changed: %t, %v", changed, err)
			}
			if next.ca.Equal(good.ca.Certificate) != test.keepCA {
				t.Errorf("got authority kept %t, want %t", !test.keepCA, test.keepCA)
			}
			if _, err := parse(encoded(t, next)); err != nil {
				t.Error(err)
			}
		})
	}
}
