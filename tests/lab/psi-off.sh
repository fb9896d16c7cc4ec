# A kernel with PSI that was booted with psi=0. Run by init.

section check psi-agent check
section once psi-agent once --scope all
