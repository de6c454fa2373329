package main

import (
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestStartup_UnusableClusterIsReportedInOneLine(t *testing.T) {
	a := newAPI(t)
	cfg := a.cluster.Config()
	for name, test := range map[string]struct {
		server clientcmdapi.Cluster
		token  string
		want   string
	}{
		"nothing listens": {
			clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, "any",
			"connect to the cluster at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused",
		},
		"untrusted certificate": {
			clientcmdapi.Cluster{Server: cfg.Host}, "any",
			"certificate",
		},
		"invalid token": {
			clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData,
				CertificateAuthority: cfg.CAFile}, "wrong",
			"the server has asked for the client to provide credentials",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, runArgs(writeKubeconfig(t, &test.server, test.token))...)
			if code := p.wait(); code != 1 {
				t.Errorf("got exit code %d, want 1", code)
			}
			first, rest, _ := strings.Cut(p.output(), "\n")
			if !strings.Contains(first, `"msg":"Starting","v":0,"version":`) {
				t.Errorf("got first line %q, want the version", first)
			}
			if strings.Count(rest, "\n") != 1 || !strings.Contains(rest, test.want) {
				t.Errorf("got %q after the first line, want one line with %q", rest, test.want)
			}
		})
	}
}
