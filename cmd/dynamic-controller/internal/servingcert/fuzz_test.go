package servingcert

import "testing"

// FuzzSecret checks that rotation replaces any Secret with a usable one.
func FuzzSecret(f *testing.F) {
	data, err := createdAt(f, start).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data[caKey], data[caKeyKey], data[servingKey], data[serverKey])
	f.Add(data[servingKey], data[serverKey], data[caKey], data[caKeyKey])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, authorities, authorityKey, certificate, key []byte) {
		b, _ := parse(map[string][]byte{
			caKey: authorities, caKeyKey: authorityKey, servingKey: certificate, serverKey: key,
		})
		next, _ := rotated(t, b, start)
		if err := next.check(start, host); err != nil {
			t.Error(err)
		}
	})
}
