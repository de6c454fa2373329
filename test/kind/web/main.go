// Web is the workload of the Blueprint in test/kind. It responds to / with its host name. At /ready, it reports whether
// another server responds. The environment variable PEER contains the URL of that server. If PEER is empty, Web always
// reports that it is ready.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	const timeout = time.Second
	client := &http.Client{Timeout: timeout}
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	http.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) {
		peer := os.Getenv("PEER")
		if peer == "" {
			return
		}
		answer, err := client.Get(peer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer answer.Body.Close()
		_, _ = io.Copy(w, answer.Body)
	})
	server := &http.Server{Addr: ":8080", ReadHeaderTimeout: timeout}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
