package servingcert

import (
	"context"
	"crypto/x509"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/fake"
)

// The Manager creates the certificate, and publishes the authority that issued it. The Loader of each replica then
// serves the certificate.
func Example() {
	options := Options{Namespace: "system", Name: "hook", Webhook: "blueprints.example.com"}
	client := fake.NewClientset(configuration(options.Webhook))
	configs := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	secrets := client.CoreV1().Secrets("system")
	manager := newManager(logr.Discard(), secrets, configs, options)
	loader := newLoader(logr.Discard(), secrets, options)

	ctx := context.Background()
	if err := manager.sync(ctx); err != nil { // Run calls sync every minute
		panic(err)
	}
	if err := loader.load(ctx); err != nil { // Run calls load every 30 seconds
		panic(err)
	}
	served, err := loader.GetCertificate(nil)
	if err != nil {
		panic(err)
	}
	_, webhook, err := manager.config(ctx)
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(webhook.ClientConfig.CABundle)
	_, err = served.Leaf.Verify(x509.VerifyOptions{Roots: trusted, DNSName: "hook.system.svc"})
	fmt.Println(served.Leaf.DNSNames, err)
	// Output: [hook.system.svc] <nil>
}
