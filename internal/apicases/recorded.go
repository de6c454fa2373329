package apicases

import (
	"crypto/sha256"
	_ "embed" // the recorded answers
	"fmt"
	"strings"
)

// recorded has a line for each case, with the digest of the answers of kube-apiserver and the name of the case.
//
//go:embed testdata/answers.txt
var recorded string

// Recorded returns the digests of the answers of kube-apiserver, by the name of the case. The test in test/integration
// records them if it is run with -update-answers.
func Recorded() map[string]string {
	digests := map[string]string{}
	for line := range strings.Lines(recorded) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		digests[name] = digest
	}
	return digests
}

// Digest returns a digest of answers.
func Digest(answers []string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(answers, "\n"))))[:16]
}
