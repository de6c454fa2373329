package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes the administrator's kubeconfig to the directory and, unless extraPath is empty, to a second
// file. Keys and certificates are embedded, so the file can be copied.
func (d dir) writeKubeconfig(server, extraPath string) error {
	const name = "controlplane"
	config := clientcmdapi.NewConfig()
	ca, err := os.ReadFile(d.cert(clusterCA))
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(d.cert(adminCert))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(d.key(adminCert))
	if err != nil {
		return err
	}
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	for _, path := range []string{d.kubeconfig(), extraPath} {
		if path == "" {
			continue
		}
		if err := writeFileAtomically(path, data); err != nil {
			return fmt.Errorf("write kubeconfig %s: %w", path, err)
		}
	}
	return nil
}

// adminConfig returns the administrator's config, without client-side throttling.
func (d dir) adminConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}
