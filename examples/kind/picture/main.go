package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if err := picture(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// picture reads the output of a run and writes its image.
func picture(in io.Reader, out io.Writer) error {
	r, err := parse(in)
	if err != nil {
		return err
	}
	_, err = out.Write(draw(r))
	return err
}
