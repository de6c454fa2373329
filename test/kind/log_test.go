//go:build kind

package kind

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podLog is the log of a replica, without lines of other formats.
type podLog []logLine

type logLine struct {
	Time    time.Time `json:"ts"`
	Message string    `json:"msg"`
	Term    int64     `json:"term"`
}

// logSince returns what the running container of the Pod has logged since then.
func (e *env) logSince(pod string, then time.Time) podLog {
	e.Helper()
	var raw []byte
	e.eventually(patience, "the log of "+pod+" can be read", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var err error
		raw, err = e.kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
			SinceTime: new(metav1.NewTime(then)), // sent in whole seconds
		}).DoRaw(ctx)
		return err
	})
	var lines podLog
	for text := range strings.Lines(string(raw)) {
		var line logLine
		if json.Unmarshal([]byte(text), &line) == nil && !line.Time.Before(then) {
			lines = append(lines, line)
		}
	}
	return lines
}

// first returns the first line with the message.
func (l podLog) first(message string) (line logLine, ok bool) {
	for _, line := range l {
		if line.Message == message {
			return line, true
		}
	}
	return logLine{}, false
}
