// Package servingcert maintains the serving certificate of a webhook. The leader runs a [Manager], which keeps a
// certificate authority and a certificate in a Secret, and the bundle of authorities in a
// ValidatingWebhookConfiguration. Every replica runs a [Loader], which reads the certificate from the Secret.
//
// The Secret has the keys of a kubernetes.io/tls Secret, and two more:
//
//	ca.crt   the authorities, newest first
//	ca.key   the key of the newest authority
//	tls.crt  the certificate
//	tls.key  the key of the certificate
//
// # Rotation
//
// A certificate is valid for 90 days and an authority for a year. Both are replaced after two thirds of that time. When
// an authority is replaced, the webhook configuration contains the old and the new one for some time. The new authority
// does not issue certificates until the configuration contains it and it is at least an hour old. Normally, API servers
// therefore accept the certificates of all replicas. If the configuration is updated more than an hour after the
// authority was created, an API server with an outdated cache can briefly reject a new certificate. The old authority
// is removed an hour after its last certificate was replaced.
//
// The contents of the Secret are replaced if they are empty or malformed. They are also replaced if the certificate has
// expired, is for a different name, or was not issued by an authority in the Secret. A new leader continues with the
// Secret that the previous leader wrote.
package servingcert
