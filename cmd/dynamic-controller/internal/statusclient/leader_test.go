package statusclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

func TestPortOf_PrefersTheContainerOfThePlatform(t *testing.T) {
	container := func(name, port string, number int32) corev1.Container {
		return corev1.Container{Name: name, Ports: []corev1.ContainerPort{{Name: port, ContainerPort: number}}}
	}
	proxy, platform := container("proxy", portName, 1), container(containerName, portName, 2)
	for name, test := range map[string]struct {
		containers []corev1.Container
		want       int32
	}{
		"a proxy before the platform": {[]corev1.Container{proxy, platform}, 2},
		"a proxy after the platform":  {[]corev1.Container{platform, proxy}, 2},
		"another name":                {[]corev1.Container{container("a", "health", 3), container("b", portName, 4)}, 4},
		"no port":                     {[]corev1.Container{container(containerName, "health", 3)}, 0},
	} {
		got, err := portOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: test.containers}})
		if got != test.want || (err == nil) != (test.want != 0) {
			t.Errorf("%s: got %d, error %v", name, got, err)
		}
	}
}

func TestNewForDialer_VerifiesTheCertificateIfAsked(t *testing.T) {
	requests := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		_, _ = io.WriteString(w, document)
	}))
	t.Cleanup(server.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate())
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	for name, test := range map[string]struct {
		settings *tls.Config
		valid    bool
	}{
		"not verified":      {nil, true},
		"the authority":     {&tls.Config{RootCAs: trusted, ServerName: "example.com"}, true},
		"another name":      {&tls.Config{RootCAs: trusted, ServerName: "example.org"}, false},
		"another authority": {&tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}, false},
	} {
		requests = 0
		c, err := newForDialer(dial, &rest.Config{BearerToken: "given"}, test.settings)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Status(t.Context())
		c.Close()
		if (err == nil) != test.valid || (requests > 0) != test.valid {
			t.Errorf("%s: got error %v, %d requests", name, err, requests)
		}
		if err != nil && !strings.Contains(err.Error(), "check --replica-certificate-authority") {
			t.Errorf("%s: the error has no remedy: %v", name, err)
		}
	}
}
