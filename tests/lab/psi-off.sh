# A kernel that has PSI and was told to leave it off. Run by init.

section check psi-agent check
section once psi-agent once --scope all
